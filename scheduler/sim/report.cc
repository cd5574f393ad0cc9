#include "scheduler/sim/report.h"

#include "common/words.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

constexpr int kWidth = 860;
constexpr int kHeight = 260;
constexpr int kLeft = 60;
constexpr int kBottom = 34;
constexpr int kTop = 10;
constexpr std::size_t kPoints = 400;
// Colours that people with any colour vision tell apart (Okabe and Ito, 2008).
constexpr const char* kColours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                    "#E69F00", "#56B4E9", "#000000", "#999999"};
constexpr const char* kDashes[] = {"",    "6 3",         "2 2",      "8 3 2 3",      "12 4",
                                   "1 4", "8 3 2 3 2 3", "12 3 3 3", "14 3 1 3 1 3", "4 8"};
constexpr std::size_t kLeftOutNamed = 1000;

struct Point {
  double x = 0;
  double y = 0;
};
struct Line {
  std::string name;
  std::vector<Point> points;  // by x
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : readable(text)) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

// What one line is known by, in plots and in the legend: by its number.
std::string style_of(std::size_t i) {
  return fmt::format("stroke=\"{}\" stroke-width=\"1.5\" stroke-dasharray=\"{}\"",
                     kColours[i % std::size(kColours)],
                     kDashes[i / std::size(kColours) % std::size(kDashes)]);
}

double hours(TimeMs ms) { return static_cast<double>(ms) / 3.6e6; }

// 1, 2 or 5 times a power of ten, about a fifth of the range.
double step_of(double range) {
  if (!(range > 0)) return 1;
  const double power = std::pow(10.0, std::floor(std::log10(range / 5)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (range / (factor * power) <= 6) return factor * power;
  return 10 * power;
}

// The mean of each of kPoints equal stretches of time.
Line over_time(const SimResult& result, const std::string& name,
               const std::function<double(const Sample&)>& value) {
  Line line{name, {}};
  const std::vector<Sample>& samples = result.samples;
  if (samples.size() < 2) return line;
  const double begin = static_cast<double>(samples.front().at_ms);
  const double end = static_cast<double>(samples.back().at_ms);
  const double width = std::max((end - begin) / static_cast<double>(kPoints), 1.0);
  std::size_t i = 0;
  for (std::size_t part = 0; part < kPoints; ++part) {
    const double from = begin + width * static_cast<double>(part);
    const double to = from + width;
    double area = 0;
    for (; i + 1 < samples.size(); ++i) {
      const double a = std::max(from, static_cast<double>(samples[i].at_ms));
      const double b = std::min(to, static_cast<double>(samples[i + 1].at_ms));
      area += std::max(b - a, 0.0) * value(samples[i]);
      if (static_cast<double>(samples[i + 1].at_ms) > to) break;
    }
    line.points.push_back({(from + width / 2) / 3.6e6, area / width});
  }
  return line;
}

// In percent of all jobs: those that never end are not done within any time.
Line done_within(const SimResult& result, const std::string& name) {
  Line line{name, {}};
  std::vector<TimeMs> jcts;
  for (const JobResult& job : result.jobs)
    if (job.finish_ms >= 0) jcts.push_back(job.jct_ms());
  std::sort(jcts.begin(), jcts.end());
  const std::size_t n = jcts.size();
  const std::size_t stride = std::max<std::size_t>(n / kPoints, 1);
  const auto add = [&](std::size_t i) {
    line.points.push_back(
        {std::log10(std::max(hours(jcts[i]), 1e-4)),
         100.0 * static_cast<double>(i + 1) / static_cast<double>(result.jobs.size())});
  };
  for (std::size_t i = 0; i < n; i += stride) add(i);
  if (n > 0) add(n - 1);
  return line;
}

std::string axis_label(double value, bool is_log) {
  return is_log ? fmt::format("{:.4g}", std::pow(10.0, value)) : fmt::format("{:g}", value);
}

std::string plot(const std::vector<Line>& lines, const std::string& x_name,
                 const std::string& y_name, bool is_log_x) {
  double x0 = 1e300, x1 = -1e300, y1 = 0;
  for (const Line& line : lines)
    for (const Point& p : line.points) {
      x0 = std::min(x0, p.x);
      x1 = std::max(x1, p.x);
      y1 = std::max(y1, p.y);
    }
  if (x0 > x1) return "<p>nothing to show</p>\n";
  if (is_log_x) {
    x0 = std::floor(x0);
    x1 = std::ceil(x1);
  }
  if (x1 <= x0) x1 = x0 + 1;
  if (y1 <= 0) y1 = 1;
  const auto at_x = [&](double x) { return kLeft + (x - x0) / (x1 - x0) * (kWidth - kLeft - 10); };
  const auto at_y = [&](double y) {
    return kHeight - kBottom - y / y1 * (kHeight - kBottom - kTop);
  };
  std::string svg =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{} over {}\">\n", kWidth,
                  kHeight, escaped(y_name), escaped(x_name));
  const double x_step = is_log_x ? 1 : step_of(x1 - x0);
  for (double x = std::ceil(x0 / x_step) * x_step; x <= x1 + x_step * 1e-6; x += x_step)
    svg += fmt::format(
        "<line class=\"g\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4}</text>\n",
        at_x(x), kTop, kHeight - kBottom, kHeight - kBottom + 14, axis_label(x, is_log_x));
  const double y_step = step_of(y1);
  for (double y = 0; y <= y1 + y_step * 1e-6; y += y_step)
    svg += fmt::format(
        "<line class=\"g\" x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\"/>"
        "<text x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:g}</text>\n",
        kLeft, kWidth - 10, at_y(y), kLeft - 5, at_y(y) + 4, y);
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", kWidth - 10,
                     kHeight - 4, escaped(x_name));
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string points;
    for (const Point& p : lines[i].points)
      points += fmt::format("{:.1f},{:.1f} ", at_x(p.x), at_y(p.y));
    svg += fmt::format("<polyline fill=\"none\" {} points=\"{}\"><title>{}</title></polyline>\n",
                       style_of(i), points, escaped(lines[i].name));
  }
  return svg + "</svg>\n";
}

std::string legend(const std::vector<Line>& lines) {
  std::string html = "<p>";
  for (std::size_t i = 0; i < lines.size(); ++i)
    html += fmt::format(
        "<span class=\"n\"><svg class=\"k\" viewBox=\"0 0 50 8\" aria-hidden=\"true\"><line "
        "x2=\"50\" y1=\"4\" y2=\"4\" {}/></svg> {}</span>\n",
        style_of(i), escaped(lines[i].name));
  return html + "</p>\n";
}

std::string table_of(const std::vector<Summary>& runs) {
  const bool has_deadlines =
      std::ranges::any_of(runs, [](const Summary& run) { return run.deadlines > 0; });
  const bool has_failures =
      std::ranges::any_of(runs, [](const Summary& run) { return run.failures.has_value(); });
  std::string html =
      "<table><tr><th>policy<th>cost<th>knows<th>JCT mean, s<th>p50, s<th>p99, s<th>makespan, h"
      "<th>GPU hours<th>used<th>trained<th>worst &rho;<th>&rho; &gt; 1.05<th>restarts<th>rescales"
      "<th>decision p99, &micro;s<th>unfinished<th>left out";
  if (has_deadlines) html += "<th>on time";
  if (has_failures) html += "<th>failures<th>lost GPU hours";
  html += "</tr>\n";
  for (const Summary& run : runs) {
    html += fmt::format(
        "<tr><td>{}<td>{}<td>{}<td>{:.1f}<td>{:.1f}<td>{:.1f}<td>{:.2f}<td>{:.1f}<td>{:.1f} "
        "%<td>{:.1f} %<td>{:.2f}<td>{:.1f} %<td>{}<td>{}<td>{:.0f}<td>{}<td>{}",
        escaped(run.policy), escaped(run.costs), escaped(run.knows), run.jct_mean_s, run.jct_p50_s,
        run.jct_p99_s, run.makespan_s / 3600, run.gpu_hours, run.utilisation * 100,
        run.training_share * 100, run.rho_worst, run.rho_above_share * 100, run.restarts,
        run.rescales, run.decision_p99_us, run.unfinished, run.refused);
    if (has_deadlines) html += fmt::format("<td>{} of {}", run.deadlines_met, run.deadlines);
    if (has_failures)
      html += fmt::format("<td>{}<td>{:.1f}", run.failures.value_or(0), run.lost_gpu_hours);
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

// The same jobs under every policy.
std::string left_out(const SimResult& result) {
  if (result.refused.empty()) return "";
  std::string html = fmt::format(
      "<details><summary>left out: {}, which could never have their GPUs</summary>\n<ul>\n",
      counted_of(result.refused.size(), result.refused.size() + result.jobs.size(), "job"));
  for (std::size_t i = 0; i < std::min(kLeftOutNamed, result.refused.size()); ++i)
    html += fmt::format("<li>{}: {}</li>\n", escaped(result.refused[i].id),
                        escaped(result.refused[i].why));
  if (result.refused.size() > kLeftOutNamed)
    html += fmt::format("<li>and {} more</li>\n", result.refused.size() - kLeftOutNamed);
  return html + "</ul></details>\n";
}

constexpr const char* kHead =
    "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n<style>body{font:15px "
    "sans-serif;max-width:62em;margin:2em auto;padding:0 1em}table{border-collapse:collapse;"
    "font-size:13px}td,th{padding:.25em .6em;text-align:right;border-bottom:1px solid #ccc}"
    "td:nth-child(-n+3),th:nth-child(-n+3){text-align:left}svg{width:100%;font-size:11px}"
    ".g{stroke:#ddd}.k{width:50px;height:8px}.n{white-space:nowrap;margin-right:1em}</style>\n";

}  // namespace

std::string html_report(const std::string& title, const std::vector<SimResult>& results,
                        const std::vector<Summary>& runs) {
  std::vector<Line> held;
  std::vector<Line> waiting;
  std::vector<Line> done;
  for (const SimResult& result : results) {
    const std::string name = result.policy + ", " + result.costs;
    held.push_back(
        over_time(result, name, [](const Sample& s) { return static_cast<double>(s.held); }));
    waiting.push_back(
        over_time(result, name, [](const Sample& s) { return static_cast<double>(s.waiting); }));
    done.push_back(done_within(result, name));
  }
  std::string html = kHead;
  html += fmt::format("<title>{0}</title>\n<h1>{0}</h1>\n", escaped(title));
  if (!results.empty())
    html += fmt::format("<p>{} on {} ({})</p>\n", counted(results.front().jobs.size(), "job"),
                        escaped(to_text(results.front().cluster)),
                        counted(results.front().cluster.gpus(), "GPU"));
  html += table_of(runs);
  if (!results.empty()) html += left_out(results.front());
  html += legend(held);
  html += "<h2>GPUs held</h2>\n" + plot(held, "hours", "GPUs", false);
  html += "<h2>Jobs that wait</h2>\n" + plot(waiting, "hours", "jobs", false);
  html += "<h2>Jobs done within a time of their submission</h2>\n" +
          plot(done, "hours (logarithmic)", "% of jobs", true);
  return html + "</html>\n";
}

}  // namespace rubato::sched::sim
