// docs/metrics.md and the catalogues that it is made of.
//
//   metrics_page --write ROOT   writes ROOT/docs/metrics.md
//   metrics_page --check ROOT   fails where the page differs
//   metrics_page --list         a line a metric: name, type, labels by comma, help; tab between
#include "operator/control/metric_catalog.h"
#include "worker/agent/agent_series.h"

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

namespace rubato {
namespace {

constexpr std::string_view kHead = R"(# Metrics

Written from the catalogues in the code by `make docs`; a test compares. `docs/runbook.md` says which to look at, and when.

Names and units follow Prometheus' rules: base units, `_total` for counters. An operator shows its own at `--probes` under
`/metrics`. The namespace of a job's series is the job's, so scrape with `honorLabels: true`, as the chart's ServiceMonitor does.

The series of jobs are bounded: those that hold GPUs first, 2 000 in all (`rubato_jobs_without_series` counts the others); they leave
with the job. Beyond 256 queues and 64 GPU types the rest is shown together as `(other)`, and reasons that are not known as `Other`.
A scrape reads the caches once, and at most once a second, however many ask. Counters begin at 0 with each new leader.
)";

std::vector<control::MetricGroup> all_groups() {
  std::vector<control::MetricGroup> groups = control::metric_catalog();
  groups.push_back(
      {"Agents",
       "Of each worker pod, at `--worker-metrics-port` under `/metrics`, with those of "
       "the process; off unless a port is set.",
       worker::agent_metrics()});
  return groups;
}

void put(std::string& page, const control::MetricGroup& group) {
  page += "\n## " + std::string(group.title) + "\n\n";
  if (!group.about.empty()) page += std::string(group.about) + "\n\n";
  page += "| metric | type | labels | unit | meaning |\n| --- | --- | --- | --- | --- |\n";
  for (const MetricInfo& info : group.metrics) {
    std::string labels;
    for (const std::string_view label : info.labels)
      labels += (labels.empty() ? "`" : ", `") + std::string(label) + "`";
    page += "| `" + std::string(info.name) + "` | " + std::string(name_of(info.type)) + " | " +
            labels + " | " + std::string(info.unit) + " | " + std::string(info.help) + " |\n";
  }
}

std::string page() {
  std::string text(kHead);
  for (const control::MetricGroup& group : all_groups()) put(text, group);
  return text;
}

void list() {
  for (const control::MetricGroup& group : all_groups()) {
    for (const MetricInfo& info : group.metrics) {
      std::cout << info.name << '\t' << name_of(info.type) << '\t';
      for (std::size_t i = 0; i < info.labels.size(); ++i)
        std::cout << (i == 0 ? "" : ",") << info.labels[i];
      std::cout << '\t' << info.help << '\n';
    }
  }
}

int run(const std::string& mode, const std::string& root) {
  if (mode == "--list") return list(), 0;
  const std::string path = root + "/docs/metrics.md";
  if (mode == "--write") {
    std::ofstream(path) << page();
    return 0;
  }
  std::ifstream file(path);
  const std::string found{std::istreambuf_iterator<char>(file), {}};
  if (found == page()) return 0;
  std::fprintf(stderr, "%s differs from the catalogues: run `make docs`\n", path.c_str());
  return 1;
}

}  // namespace
}  // namespace rubato

int main(int argc, char** argv) {
  return rubato::run(argc > 1 ? argv[1] : "--check", argc > 2 ? argv[2] : ".");
}
