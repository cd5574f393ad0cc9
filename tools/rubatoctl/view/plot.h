// Drawings for a terminal, in ASCII. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rubato::ctl {

struct Point {
  double x = 0;
  double y = 0;
};
// Something that happened at x, shown by its letter under the axis.
struct Mark {
  double x = 0;
  char letter = '^';
};
struct PlotSize {
  std::size_t width = 72;  // columns of the drawing, without the labels
  std::size_t height = 16;
};

// Points that share a column are averaged. Those that are not finite are left out, which is said
// below. Empty when there are no points.
std::string plot(const std::vector<Point>& points, const std::vector<Mark>& marks = {},
                 const PlotSize& size = {});

// "[######--------]", `fraction` in 0..1.
std::string bar(double fraction, std::size_t width);
// "5m12s", "42s"; "-" below zero and for what is no finite number.
std::string short_time(double seconds);
// "812", "5.1k", "1.2M".
std::string short_number(double value);

}  // namespace rubato::ctl
