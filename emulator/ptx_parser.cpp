// Parses PTX into ptx.h's structures: the directives of a file and the heads of its functions.
#include <algorithm>

#include "emulator/ptx_reader.h"

namespace gacc::emulator {
namespace {

class FileParser {
 public:
  FileParser(const std::vector<Token>& tokens, PtxFile& file) : in_(tokens), file_(file) {}
  Status parse() {
    while (in_.go()) top_level();
    return in_.status();
  }

 private:
  void top_level() {
    const Token& token = in_.next();
    std::string_view text = token.text;
    if (text == ".version")
      file_.version = std::string(in_.next().text);
    else if (text == ".target") {
      file_.target = in_.word();
      while (in_.go() && in_.accept(",")) in_.word();
    } else if (text == ".address_size") {
      if (in_.integer() != 64) in_.fail(token, "only .address_size 64 is supported");
    } else if (text == ".file" || text == ".pragma" || text == ".loc") {
      in_.skip_line(token.line);
    } else if (text == ".visible") {
      // linkage changes nothing here
    } else if (text == ".extern") {
      external_ = true;
      return;
    } else if (text == ".entry") {
      function(token);
    } else if (text == ".global" || text == ".const" || text == ".shared") {
      for (Variable& variable : read_variables(in_, space_of(text), external_))
        file_.variables.push_back(std::move(variable));
    } else {
      in_.fail(token, fmt::format("`{}` is not expected here", text));
    }
    external_ = false;
  }

  int threads() { return static_cast<int>(std::clamp<int64_t>(in_.integer(), 0, 1024)); }

  void function(const Token& token) {
    Function function;
    function.line = token.line;
    function.name = in_.word();
    if (in_.is("(")) function.params = read_parameters(in_);
    while (in_.go() && in_.peek().kind == Token::Kind::directive) {
      const Token& option = in_.next();
      if (option.text == ".maxntid") {
        function.max_threads = 1;
        do function.max_threads = std::min(1 << 20, function.max_threads * threads());
        while (in_.go() && in_.accept(","));
      } else if (option.text == ".minnctapersm") {
        in_.integer();
      } else {
        in_.fail(option, fmt::format("`{}` is not supported", option.text));
      }
    }
    read_body(in_, function);
    if (in_.status().ok()) file_.functions.push_back(std::move(function));
  }

  PtxReader in_;
  PtxFile& file_;
  bool external_ = false;  // after `.extern`, for the declaration that follows
};

}  // namespace

Status parse_ptx(std::string_view text, PtxFile& file) {
  std::vector<Token> tokens;
  GACC_TRY(tokenize(text, tokens));
  return FileParser(tokens, file).parse();
}

}  // namespace gacc::emulator
