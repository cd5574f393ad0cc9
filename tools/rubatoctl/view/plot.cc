#include "tools/rubatoctl/view/plot.h"

#include "common/check.h"
#include "common/words.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/core.h>

namespace rubato::ctl {
namespace {

struct Frame {
  double x_min, x_max, y_min, y_max;
  PlotSize size;

  std::size_t column(double x) const {
    return x_max <= x_min ? 0 : place((x - x_min) / (x_max - x_min), size.width);
  }
  // 0 is the top.
  std::size_t line(double y) const {
    return y_max <= y_min ? size.height - 1 : place((y_max - y) / (y_max - y_min), size.height);
  }
  // Of so many; the first where the range of the points is too large for a double.
  static std::size_t place(double fraction, std::size_t places) {
    if (!(fraction > 0)) return 0;
    const auto last = static_cast<double>(places - 1);
    return static_cast<std::size_t>(std::lround(std::min(fraction, 1.0) * last));
  }
};

Frame frame_of(const std::vector<Point>& points, const PlotSize& size) {
  Frame frame{points[0].x, points[0].x, points[0].y, points[0].y, size};
  for (const Point& point : points) {
    frame.x_min = std::min(frame.x_min, point.x);
    frame.x_max = std::max(frame.x_max, point.x);
    frame.y_min = std::min(frame.y_min, point.y);
    frame.y_max = std::max(frame.y_max, point.y);
  }
  return frame;
}

std::vector<std::string> draw(const std::vector<Point>& points, const Frame& frame) {
  std::vector<double> sums(frame.size.width, 0);
  std::vector<int> counts(frame.size.width, 0);
  for (const Point& point : points) {
    sums[frame.column(point.x)] += point.y;
    ++counts[frame.column(point.x)];
  }
  std::vector<std::string> lines(frame.size.height, std::string(frame.size.width, ' '));
  std::optional<std::size_t> previous;
  for (std::size_t column = 0; column < frame.size.width; ++column) {
    if (counts[column] == 0) continue;
    const std::size_t at = frame.line(sums[column] / counts[column]);
    // A steep curve stays in one piece.
    if (previous)
      for (std::size_t line = std::min(*previous, at) + 1; line < std::max(*previous, at); ++line)
        lines[line][column] = ':';
    lines[at][column] = '*';
    previous = at;
  }
  return lines;
}

}  // namespace

std::string plot(const std::vector<Point>& points, const std::vector<Mark>& marks,
                 const PlotSize& size) {
  CHECK(size.width >= 2 && size.height >= 2);
  std::vector<Point> finite = points;
  const std::size_t left_out = std::erase_if(finite, [](const Point& point) {
    return !std::isfinite(point.x) || !std::isfinite(point.y);
  });
  const std::string remark = left_out == 0
                                 ? ""
                                 : fmt::format("{} {} not finite, and left out\n",
                                               counted_of(left_out, points.size(), "point"),
                                               agreeing(left_out, "is", "are"));
  if (finite.empty()) return remark;
  const Frame frame = frame_of(finite, size);
  const auto lines = draw(finite, frame);
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const double y = frame.y_max - (frame.y_max - frame.y_min) * static_cast<double>(i) /
                                       static_cast<double>(size.height - 1);
    const bool labelled = i % 3 == 0 || i + 1 == lines.size();
    std::string line = lines[i];
    line.erase(line.find_last_not_of(' ') + 1);
    text += (labelled ? fmt::format("{:8.3f} |", y) : std::string(9, ' ') + "|") + line + "\n";
  }
  text += std::string(9, ' ') + "+" + std::string(size.width, '-') + "\n";
  if (!marks.empty()) {
    std::string below(size.width, ' ');
    for (const Mark& mark : marks) {
      std::size_t at = frame.column(mark.x);
      while (at + 1 < below.size() && below[at] != ' ') ++at;  // beside one that is there
      below[at] = mark.letter;
    }
    below.erase(below.find_last_not_of(' ') + 1);
    text += std::string(10, ' ') + below + "\n";
  }
  const std::string left = fmt::format("{:g}", frame.x_min);
  const std::string right = fmt::format("{:g}", frame.x_max);
  const std::size_t gap =
      size.width > left.size() + right.size() ? size.width - left.size() - right.size() : 1;
  return text + std::string(10, ' ') + left + std::string(gap, ' ') + right + "\n" + remark;
}

std::string bar(double fraction, std::size_t width) {
  // What is no number is nothing.
  const double filled = fraction > 0 ? std::min(fraction, 1.0) * static_cast<double>(width) : 0;
  const auto count = static_cast<std::size_t>(filled);
  return "[" + std::string(count, '#') + std::string(width - count, '-') + "]";
}

std::string short_time(double seconds) {
  if (!(seconds >= 0) || std::isinf(seconds)) return "-";
  const auto whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

std::string short_number(double value) {
  if (value < 1000) return fmt::format("{:.0f}", value);
  if (value < 1e6) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.1f}M", value / 1e6);
}

}  // namespace rubato::ctl
