#include "tools/report/markup.h"

#include <algorithm>
#include <utility>

namespace gacc::report {

std::string escaped(std::string_view text) {
  constexpr std::pair<char, std::string_view> kEntities[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto* entity = std::ranges::find(kEntities, text[i], &std::pair<char, std::string_view>::first);
    if (entity != std::end(kEntities)) {
      out += entity->second;
    } else if (c == 127 || (c < 32 && c != '\n' && c != '\t')) {
      out += "\xef\xbf\xbd";
    } else if (c == 0xef && text.substr(i, 2) == "\xef\xbf" && i + 2 < text.size() &&
               static_cast<unsigned char>(text[i + 2]) >= 0xbe) {
      out += "\xef\xbf\xbd";  // U+FFFE and U+FFFF are no characters
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string shortened(std::string_view text, size_t most) {
  std::vector<size_t> starts;  // of characters
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) starts.push_back(i);
  if (starts.size() <= most) return std::string(text);
  const size_t head = most / 2, tail = most - head - 1;
  return fmt::format("{}…{}", text.substr(0, starts[head]), text.substr(starts[starts.size() - tail]));
}

std::string percent(double fraction) {
  const double value = 100 * fraction;
  return fmt::format("{:.{}f} %", value, value < 10 ? 1 : 0);
}

std::string_view colour(Category category) {
  constexpr std::string_view kColours[kCategories] = {"#4c78a8", "#9ecae9", "#f2a13c", "#b07aa1",
                                                      "#8c8c8c", "#59a14f", "#a6d854", "#e15759"};
  return kColours[static_cast<size_t>(category)];
}

std::string number(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.size() > 2 && text.substr(text.size() - 2) == ".0") text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

Svg::Svg(double width, double height, std::string_view label)
    : body_(fmt::format("<div class=\"picture\"><svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} "
                        "{}\" role=\"img\" aria-label=\"{}\">\n",
                        number(width), number(height), escaped(label))) {}

void Svg::rect(double x, double y, double width, double height, std::string_view style,
               std::string_view title) {
  body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" {}", number(x), number(y),
                       number(width), fmt::format("{:.2f}", height), style);
  body_ += title.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", escaped(title));
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view style) {
  body_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" {}/>\n", number(x1), number(y1),
                       number(x2), number(y2), style);
}

void Svg::text(double x, double y, std::string_view text, std::string_view anchor, std::string_view classes) {
  body_ += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", number(x),
                       number(y), anchor, classes, escaped(text));
}

void Svg::path(std::string_view data, std::string_view style, std::string_view title) {
  body_ += fmt::format("<path d=\"{}\" {}", data, style);
  body_ += title.empty() ? "/>\n" : fmt::format("><title>{}</title></path>\n", escaped(title));
}

int64_t byte_step(int64_t top, int lines) {
  int64_t unit = 1;
  while (unit * 1024 <= top) unit *= 1024;
  for (const int64_t part : {4, 2})
    if (unit >= part && unit / part * lines >= top) return unit / part;
  for (const int64_t times : {1, 2, 5, 10, 20, 50, 100, 200, 500})
    if (unit * times * lines >= top) return unit * times;
  return unit * 1024;
}

}  // namespace gacc::report
