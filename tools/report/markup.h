// Small pieces of HTML and SVG. The whole page is well-formed XML as well as HTML, so that tests can parse
// it; every text that comes from a model goes through `escaped`.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "tools/report/memory_map.h"

namespace gacc::report {

// For element content and attributes; what XML cannot hold becomes U+FFFD.
std::string escaped(std::string_view text);
std::string shortened(std::string_view text, size_t most);  // with … in the middle, by characters
std::string percent(double fraction);                       // "4.2 %"
std::string_view colour(Category category);                 // of the legend; "#54a24b"
// A CSS length or an SVG coordinate: at most one decimal, no trailing zero.
std::string number(double value);

// A picture, in pixels at its natural size; the page scales it to the width of its column, and on a narrow
// screen it is moved sideways.
class Svg {
 public:
  Svg(double width, double height, std::string_view label);
  void rect(double x, double y, double width, double height, std::string_view style,
            std::string_view title = {});
  void line(double x1, double y1, double x2, double y2, std::string_view style);
  // anchor: start, middle or end.
  void text(double x, double y, std::string_view text, std::string_view anchor = "start",
            std::string_view classes = "t");
  void path(std::string_view data, std::string_view style, std::string_view title = {});
  std::string finish() const { return body_ + "</svg></div>\n"; }

 private:
  std::string body_;
};

// Gridlines at round byte counts: 0, step, 2 step, ... up to about `top`.
int64_t byte_step(int64_t top, int lines);

}  // namespace gacc::report
