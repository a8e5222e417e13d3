#!/usr/bin/env python3
"""Texts about the programs' options, made of the table that each prints with --dump-options.

    commands.py --bin DIR --out DIR     man pages and completion: DIR/man/X.1.gz, DIR/bash/X, DIR/zsh/_X
    commands.py --bin DIR --markdown    docs/commands.md, on standard output (scripts/bless rewrites it)
"""
import argparse
import gzip
import json
import pathlib
import re
import subprocess

PROGRAMS = ["gaccc", "gacc-exec", "gacc-opt", "gacc-plan"]


class Program:
    """One program's table, or one of its subcommands'."""

    def __init__(self, table):
        self.name, self.version, self.groups = table["name"], table["version"], table["groups"]
        self.description = table["description"].rstrip(".")
        self.commands = [Program(each) for each in table["commands"]]
        # "Title:" and the indented lines below it, of the text at the end of --help.
        parts = re.split(r"^(\S.*):\n", table["footer"], flags=re.M)
        self.sections = [(title, [line.removeprefix("    ") for line in text.strip("\n").split("\n")])
                         for title, text in zip(parts[1::2], parts[2::2])]

    @property
    def summary(self):
        return self.description[0].lower() + self.description[1:]

    def options(self):
        return [option for group in self.groups for option in group["options"] if option["names"]]

    def positionals(self):
        return [option for group in self.groups for option in group["options"] if not option["names"]]

    def words(self):
        return [name for option in self.options() for name in option["names"]]

    def parts(self):
        """The program and its subcommands, each with its name on a command line."""
        return [(self.name, self), *((f"{self.name} {each.name}", each) for each in self.commands)]

    def synopsis(self):
        """Required options with their values, [OPTIONS], positionals."""
        required = [f"{o['names'][-1]} {o['value']}" for o in self.options() if o["required"]]
        places = [o["positional"] if o["required"] else f"[{o['positional']}]" for o in self.positionals()]
        if self.commands:
            places = ["|".join(command.name for command in self.commands), "..."]
        return " ".join([*required, "[OPTIONS]", *places])


def one_line(text):
    return text.replace("\n", " ")


# ---------------------------------------------------------------- docs/commands.md
def cell(text):
    return text.replace("|", "\\|")


def markdown(programs):
    yield "# The programs and their options\n"
    yield "Printed by `scripts/commands.py` from what the programs declare; `scripts/bless` rewrites it."
    yield "Each program also has"
    yield "a man page, and completion for bash and zsh ([install.md](install.md))."
    for program in programs:
        yield f"\n## {program.name}\n\n{program.description}.\n"
        for name, part in program.parts():
            if part is not program:
                yield f"\n### {name}\n\n{part.description}.\n"
            yield f"```\n{name} {part.synopsis()}\n```"
            for group in part.groups:
                yield "" if group["name"] == "Options" else f"\n{group['name']}:\n"
                yield "| option | what it does |\n|---|---|"
                for option in group["options"]:
                    names = ", ".join(option["names"]) or option["positional"]
                    usage = " ".join(filter(None, [names, option["value"]]))
                    yield f"| `{cell(usage)}` | {cell(one_line(option['help']))} |"
        for title, lines in program.sections:
            yield f"\n{title}:\n\n```\n" + "\n".join(lines) + "\n```"


# ---------------------------------------------------------------- man pages
def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def man_options(program):
    for group in program.groups:
        if group["name"] != "Options":
            yield f".SS {roff(group['name'])}"
        for option in group["options"]:
            names = ", ".join(rf"\fB{roff(name)}\fR" for name in option["names"])
            names = names or rf"\fI{roff(option['positional'])}\fR"
            value = rf" \fI{roff(option['value'])}\fR" if option["value"] else ""
            yield f".TP\n{names}{value}\n{roff(option['help'])}"


def man(program, programs):
    yield f'.TH {program.name.upper()} 1 "" "gacc {program.version.split()[1]}" "User Commands"'
    yield f".SH NAME\n{roff(program.name)} \\- {roff(program.summary)}\n.SH SYNOPSIS"
    yield "\n.br\n".join(rf"\fB{roff(name)}\fR {roff(part.synopsis())}" for name, part in program.parts())
    yield ".SH OPTIONS"
    yield from man_options(program)
    for name, part in program.parts()[1:]:
        yield f".SH {roff(name.upper())}\n{roff(part.description)}."
        yield from man_options(part)
    for title, lines in program.sections:
        yield f".SH {roff(title.upper())}\n.nf\n" + "\n".join(map(roff, lines)) + "\n.fi"
    others = [rf"\fB{roff(each.name)}\fR(1)" for each in programs if each is not program]
    yield ".SH SEE ALSO\n" + ",\n".join(others)


# ---------------------------------------------------------------- completion
def known_words(folder, programs):
    """The words that are known for a kind of value, or for the value of an option."""
    def printed(*command):
        return subprocess.check_output([folder / command[0], *command[1:]], text=True)

    schema = json.loads(printed("gaccc", "--schema", "--json"))
    tables = [table for table in schema if table["table"] == f"[{table.get('path')}]"]
    keys = [(table["path"], key) for table in tables
            for key in (*table["keys"], *(key for one in table.get("types", []) for key in one["keys"]))]
    sections = dict(section for program in programs for section in program.sections)
    return {"PASS": [line.split()[0] for line in printed("gacc-opt", "--list-passes").splitlines() if line.strip()],
            "KEY=VALUE": sorted({f"{path}.{key['key']}=" for path, key in keys if "NAME" not in path}),
            "SPEC": re.findall(r"^(\w+:)", "\n".join(sections["SPEC"]), re.M),
            "--best": ["loss", *next(key["words"] for path, key in keys if (path, key["key"]) == ("model", "metrics"))]}


def choices(option, known):
    """Returns the possible values of an option: words, and "files" or "folders"; both empty where anything may."""
    words, kind = [*known.get(option["names"][-1], [])], ""
    for each in re.sub(r"\[.*?\]", "", option["value"]).split("|"):
        words += known.get(each, [])
        if each.startswith("FOLDER"):
            kind = "folders"
        elif each.startswith(("FILE", "SPEC")):
            kind = "files"
        elif each == "sm_NN":
            words += re.findall(r"sm_\d+a?", option["help"])
        elif each and each == each.lower():
            words.append(each)
    return list(dict.fromkeys(words)), kind


def goes_on(words):
    """Returns whether a value goes on behind these words."""
    return any(word.endswith(("=", ":")) for word in words)


def bash_function(name, program, known):
    yield f"{name}() {{"
    if program.commands:
        names = " ".join(command.name for command in program.commands)
        yield f"  local word\n  for word in \"${{COMP_WORDS[@]:1:COMP_CWORD-1}}\"; do\n    case $word in"
        for command in program.commands:
            yield f"      {command.name}) {name}_{command.name}; return ;;"
        yield "    esac\n  done"
        words = " ".join([names, *program.words()])
        yield f"  COMPREPLY=($(compgen -W '{words}' -- \"${{COMP_WORDS[COMP_CWORD]}}\"))\n}}"
        for command in program.commands:
            yield from bash_function(f"{name}_{command.name}", command, known)
        return
    yield "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}"
    yield "  if [[ $word == = ]]; then word=; elif [[ $before == = ]]; then before=${COMP_WORDS[COMP_CWORD - 2]}; fi"
    yield "  case $before in"
    for option in program.options():
        if not option["value"]:
            continue
        words, kind = choices(option, known)
        does = f"COMPREPLY=($(compgen -W '{' '.join(words)}' -- \"$word\"))" if words else ""
        flags = {"files": " -o default", "folders": " -o dirnames", "": ""}[kind] + " -o nospace" * goes_on(words)
        more = f"compopt{flags}" if flags else ""
        yield f"    {'|'.join(option['names'])}) " + "; ".join(filter(None, [does, more, "return"])) + " ;;"
    yield "  esac\n  case $word in"
    yield f"    -*) COMPREPLY=($(compgen -W '{' '.join(program.words())}' -- \"$word\")) ;;"
    yield "    *) compopt -o default ;;" if program.positionals() else "    *) ;;"
    yield "  esac\n}"


def bash(program, known):
    name = "_" + program.name.replace("-", "_")
    yield f"# bash completion of {program.name}; made by scripts/commands.py"
    yield from bash_function(name, program, known)
    yield f"complete -F {name} {program.name}"


def zsh_word(text):
    return "'" + re.sub(r"([\[\]:\\])", r"\\\1", one_line(text)).replace("'", "'\\''") + "'"


def zsh_arguments(program, known, indent):
    for option in program.options():
        text, value = zsh_word(option["help"])[1:-1], ""
        if option["value"]:
            words, kind = choices(option, known)
            action = {"files": "_files", "folders": "_files -/", "": ""}[kind]
            if goes_on(words):
                action = f'{{compadd -S "" -- {" ".join(words)}; {action}}}'.replace(":", "\\:")
            elif words:
                action = f"({' '.join(words)})"
            value = f":{zsh_word(option['value'])[1:-1]}:{action or ' '}"
        for name in option["names"]:
            equals = "=" if value and name.startswith("--") else ""
            yield f"{indent}'{'*' if option['repeats'] else ''}{name}{equals}[{text}]{value}'"
    for option in program.positionals():
        yield f"{indent}':{zsh_word(option['positional'])[1:-1]}:_files'"


def zsh(program, known):
    yield f"#compdef {program.name}\n# made by scripts/commands.py"
    if not program.commands:
        yield "_arguments -s \\\n" + " \\\n".join(zsh_arguments(program, known, "  "))
        return
    yield "local curcontext=$curcontext state line"
    names = " ".join(f'{c.name}\\:"{c.description}"' for c in program.commands)
    arguments = [*zsh_arguments(program, known, "  "), f"  '1:command:(({names}))'", "  '*::argument:->rest'"]
    yield "_arguments -s -C \\\n" + " \\\n".join(arguments)
    yield "case $state/$line[1] in"
    for command in program.commands:
        arguments = " \\\n".join(zsh_arguments(command, known, "      "))
        yield f"  rest/{command.name})\n    _arguments -s \\\n{arguments}\n    ;;"
    yield "esac"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="the folder of the programs")
    parser.add_argument("--out", type=pathlib.Path, help="the folder to write to")
    parser.add_argument("--markdown", action="store_true", help="print docs/commands.md")
    given = parser.parse_args()
    folder = given.bin.resolve()
    tables = [json.loads(subprocess.check_output([folder / name, "--dump-options"])) for name in PROGRAMS]
    programs = [Program(table) for table in tables]
    if given.markdown:
        print("\n".join(markdown(programs)))
    if given.out:
        known = known_words(folder, programs)
        for program in programs:
            for path, lines in ((f"man/{program.name}.1.gz", man(program, programs)),
                                (f"bash/{program.name}", bash(program, known)),
                                (f"zsh/_{program.name}", zsh(program, known))):
                file = given.out / path
                file.parent.mkdir(parents=True, exist_ok=True)
                text = ("\n".join(lines) + "\n").encode()
                file.write_bytes(gzip.compress(text, mtime=0) if file.suffix == ".gz" else text)


if __name__ == "__main__":
    main()
