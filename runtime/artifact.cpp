// Writes and reads the artifact text. The checksum line covers everything after it, and must read exactly as
// this file would write it, so any change of any byte is refused.
#include "runtime/artifact.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "runtime/atomic_file.h"

namespace gacc {
namespace {

constexpr std::string_view kIrLine = "//ir ";
constexpr std::string_view kEndLine = "//end";
constexpr std::string_view kSetsLine = "//sets ";
constexpr std::string_view kModelLine = "//model ";

std::string header(std::string_view body) {
  return fmt::format("{}{} bytes={} crc32={:08x}\n", kArtifactMagic, kArtifactVersion, body.size(),
                     crc32_of(body));
}

// Takes the next line off `text`, without its end; false when none is left.
bool take_line(std::string_view& text, std::string_view& line) {
  const size_t end = text.find('\n');
  if (end == std::string_view::npos) return false;
  line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return true;
}

bool take_number(std::string_view& text, int64_t& number) {
  auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

// Guesses what a text that is no artifact is, for the error.
std::string_view guess(std::string_view text) {
  const std::string_view head = text.substr(0, 4096);
  const auto holds = [&](std::string_view part) { return head.find(part) != head.npos; };
  if (text.empty()) return "it is empty";
  if (text.starts_with("\x1f\x8b")) return "it is compressed with gzip";
  if (text.starts_with("PK\x03\x04")) return "it is a zip file";
  if (text.starts_with("\177ELF")) return "it is a binary (ELF)";
  // Eight bytes of a length, the last of them 0: a model file may well begin with `model = {`.
  if (text.size() > 8 && text[7] == '\0' && text[8] == '{') return "it looks like a safetensors file";
  if (holds("[model]") || holds("[[layers]]") || text.starts_with("model"))
    return "it looks like a model file; compile it with gaccc first";
  if (holds(".version") && holds(".target")) return "it is PTX without gacc's IR";
  if (text.starts_with("module @")) return "it looks like gacc's textual IR";
  if (head.find('\0') != head.npos) return "it is a binary file";
  return "its first line does not begin with \"// gacc artifact\"";
}

// Checks the first line (magic, version, byte count, checksum), and returns what follows it.
Result<std::string_view> check_header(std::string_view text, std::string_view name) {
  if (text.substr(0, kArtifactMagic.size()) != kArtifactMagic)
    return Status::error("{}: not a gacc artifact: {}", name, guess(text));
  std::string_view rest = text, line;
  if (!take_line(rest, line)) return Status::error("{}: the artifact is cut off in its first line", name);
  std::string_view fields = line.substr(kArtifactMagic.size());
  int64_t version = 0, bytes = 0;
  const auto damaged = [&] { return Status::error("{}: the artifact's first line is damaged", name); };
  if (!take_number(fields, version)) return damaged();
  if (version != kArtifactVersion)
    return Status::error(
        "{}: artifact format {}, this gacc reads format {}; compile the model again with its gaccc", name,
        version, kArtifactVersion);
  constexpr std::string_view kBytes = " bytes=";
  if (!fields.starts_with(kBytes)) return damaged();
  fields.remove_prefix(kBytes.size());
  if (!take_number(fields, bytes)) return damaged();
  if (bytes > static_cast<int64_t>(rest.size()))
    return Status::error("{}: the artifact is cut off: {} of {} bytes are there", name, rest.size(), bytes);
  if (bytes != static_cast<int64_t>(rest.size()))
    return Status::error("{}: the artifact was altered: {} follow{} its first line instead of {}", name,
                         counted(rest.size(), "byte"), rest.size() == 1 ? "s" : "", bytes);
  const std::string expected = header(rest);
  if (line != std::string_view(expected).substr(0, expected.size() - 1))
    return Status::error("{}: the artifact was altered: its checksum does not match", name);
  return rest;
}

constexpr std::string_view kHexDigits = "0123456789abcdef";

// Tells the bytes that are written as they are; every other one, and the backslash, is \xNN.
bool plain(char c) { return c >= ' ' && c <= '~' && c != '\\'; }

void add_escaped(std::string_view line, std::string& to) {
  for (const char c : line) {
    const auto byte = static_cast<unsigned char>(c);
    if (plain(c))
      to += c;
    else
      to += {'\\', 'x', kHexDigits[byte >> 4], kHexDigits[byte & 15]};
  }
}

// Does the inverse; false for a line that add_escaped does not write.
bool add_unescaped(std::string_view line, std::string& to) {
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      if (!plain(line[i])) return false;
      to += line[i];
      continue;
    }
    const std::string_view escape = line.substr(i, 4);
    if (escape.size() < 4 || escape[1] != 'x') return false;
    const size_t high = kHexDigits.find(escape[2]), low = kHexDigits.find(escape[3]);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    const char byte = static_cast<char>(high << 4 | low);
    if (plain(byte) || byte == '\n') return false;
    to += byte;
    i += 3;
  }
  return true;
}

// Adds every line of `text` behind the mark that says what it is.
void add_lines(std::string_view text, std::string_view mark, std::string& body) {
  std::string_view line;
  while (!text.empty()) {
    if (!take_line(text, line)) {
      line = text;
      text = {};
    }
    add_escaped(line, body.append(mark));
    body += '\n';
  }
}

// Adds a line as it was before it was escaped; `what` it belongs to is for the error.
Status add_line(std::string_view line, std::string_view name, std::string_view what, std::string& to) {
  if (add_unescaped(line, to)) {
    to += '\n';
    return {};
  }
  return Status::error(
      "{}: the artifact's {} is damaged: its line {} is not ASCII with \\xNN for other bytes", name, what,
      1 + std::ranges::count(to, '\n'));
}

// Takes the record of the model, when there is one: `body` begins with it, and with the PTX afterwards.
Status take_model(std::string_view& body, std::string_view name, Artifact& artifact) {
  std::string_view line, rest = body;
  if (body.substr(0, kSetsLine.size()) != kSetsLine || !take_line(rest, line)) return {};
  line.remove_prefix(kSetsLine.size());
  const auto sets = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!sets.is_array() || !std::ranges::all_of(sets, [](const auto& set) { return set.is_string(); }))
    return Status::error("{}: the artifact's record of its settings is damaged", name);
  artifact.overrides = sets.get<std::vector<std::string>>();
  while (rest.substr(0, kModelLine.size()) == kModelLine && take_line(rest, line))
    GACC_TRY(add_line(line.substr(kModelLine.size()), name, "model", artifact.model));
  if (artifact.model.empty()) return Status::error("{}: the artifact has settings, but no model", name);
  body = rest;
  return {};
}

}  // namespace

std::string write_artifact(const Artifact& artifact) {
  std::string body;
  add_lines(artifact.ir, kIrLine, body);
  body.append(kEndLine) += '\n';
  if (!artifact.model.empty()) {
    body.append(kSetsLine) +=
        nlohmann::json(artifact.overrides).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    body += '\n';
    add_lines(artifact.model, kModelLine, body);
  }
  body += artifact.ptx;
  return header(body) + body;
}

Result<Artifact> read_artifact(std::string_view text, std::string_view name) {
  std::string_view body = GACC_TRY(check_header(text, name)), line;
  Artifact artifact;
  while (true) {
    if (!take_line(body, line)) return Status::error("{}: the artifact's IR has no end", name);
    if (line == kEndLine) break;
    if (line.substr(0, kIrLine.size()) != kIrLine)
      return Status::error("{}: the artifact's IR is damaged", name);
    GACC_TRY(add_line(line.substr(kIrLine.size()), name, "IR", artifact.ir));
  }
  GACC_TRY(take_model(body, name, artifact));
  artifact.ptx = body;
  return artifact;
}

Result<Artifact> load_artifact(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return Status::error("{} is a folder; gaccc {} compiles a published model", path, path);
  return read_artifact(GACC_TRY(read_input(path, int64_t{1} << 32)), path);
}

}  // namespace gacc
