// What is written of a simulation: the page, the CSV of its jobs, and how long decisions took.
#include "common/utf8.h"
#include "scheduler/sim/import/csv.h"
#include "scheduler/sim/report.h"
#include "tests/sentences.h"
#include "tests/unit/scheduler/sim_traces.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

std::string page_of(const std::vector<SimResult>& results) {
  std::vector<Summary> runs;
  for (const SimResult& result : results) runs.push_back(summarise(result));
  const std::string page = html_report("title", results, runs);
  EXPECT_EQ(wrong_number(page), "");
  return page;
}

// Of three jobs one ends: the plot ends at a third.
TEST(SimReport, JobsThatNeverEndAreNotDone) {
  SimResult result{.policy = "fifo", .costs = "free", .cluster = parse_cluster("1x1:A").value()};
  result.jobs = {{.id = "a", .start_ms = 0, .finish_ms = 7'200'000, .request = 1},
                 {.id = "b", .request = 1},
                 {.id = "c", .request = 1}};
  const std::string page = page_of({result});
  EXPECT_NE(page.find("% of jobs"), std::string::npos);
  EXPECT_NE(page.find(">30</text>"), std::string::npos) << page;
  EXPECT_EQ(page.find(">100</text>"), std::string::npos) << page;
}

TEST(SimReport, TheLegendTellsAllPoliciesApartAsThePlotsDo) {
  std::vector<SimResult> results;
  for (int i = 0; i < 66; ++i)
    results.push_back({.policy = fmt::format("p{}", i),
                       .costs = "free",
                       .cluster = parse_cluster("1x1:A").value(),
                       .samples = {{0, 1, 1, 1}, {1000, 0, 0, 0}}});
  const std::string page = page_of(results);
  const auto styles_in = [](std::string_view html, std::string_view element) {
    std::vector<std::string> styles;
    for (std::size_t at = html.find(element); at != std::string_view::npos;
         at = html.find(element, at + 1)) {
      const std::size_t from = html.find("stroke=", at);
      const std::size_t dashes = html.find("stroke-dasharray=\"", from) + 18;
      styles.emplace_back(html.substr(from, html.find('"', dashes) - from));
    }
    return styles;
  };
  const std::string_view all = page;
  const std::size_t first_plot = all.find("<h2>");
  const std::size_t second_plot = all.find("<h2>", first_plot + 1);
  const auto legend = styles_in(all.substr(0, first_plot), "<line ");
  EXPECT_EQ(legend.size(), 66u);
  EXPECT_EQ(std::set<std::string>(legend.begin(), legend.end()).size(), 66u);
  EXPECT_EQ(legend, styles_in(all.substr(first_plot, second_plot - first_plot), "<polyline "));
}

TEST(SimReport, JobsThatWereLeftOutAreCountedAndNamed) {
  const SimResult result =
      play("2x4:A", {rigid("a<b", 0, 9, 10), rigid("b", 0, 8, 10)}, "fifo", simple_costs());
  const std::string page = page_of({result});
  EXPECT_NE(page.find("<th>left out"), std::string::npos);
  EXPECT_NE(page.find("left out: 1 of 2 jobs"), std::string::npos);
  EXPECT_NE(page.find("<li>a&lt;b: asks for 9 GPUs"), std::string::npos) << page;
  SimResult many = result;
  many.refused.assign(1003, {"x", "why"});
  EXPECT_NE(page_of({many}).find("<li>and 3 more</li>"), std::string::npos);
}

// The text of a trace may be in any encoding, and anybody's.
TEST(SimReport, ThePageIsTextWhateverNamesAre) {
  SimResult result{.policy = "fifo", .costs = "free", .cluster = parse_cluster("1x1:A").value()};
  result.refused = {{"b\xe9\x1b[31m", "asks"}};
  const std::string page = page_of({result});
  EXPECT_NE(page.find("<li>b? [31m: asks</li>"), std::string::npos) << page;
  for (std::size_t i = 0; i < page.size(); i += utf8_length(page, i))
    ASSERT_GT(utf8_length(page, i), 0u) << page.substr(i, 20);
}

// One in time, one late, one that never ends, and one without a deadline.
TEST(SimReport, DeadlinesThatWereMetAreCounted) {
  SimResult result =
      play("1x1:A", {rigid("a", 0, 1, 10), rigid("b", 1, 1, 10), rigid("c", 2, 1, 10)}, "fifo");
  EXPECT_EQ(summarise(result).deadlines, 0);
  EXPECT_EQ(to_csv(result).find("deadline"), std::string::npos);
  EXPECT_EQ(to_json(result.cluster, {summarise(result)}).find("deadline"), std::string::npos);
  EXPECT_EQ(page_of({result}).find("on time"), std::string::npos);
  TraceJob in_time = rigid("a", 0, 1, 10);
  in_time.deadline_ms = 20'000;
  TraceJob late = rigid("b", 1, 1, 10);
  late.deadline_ms = 39'999;
  result = play("1x1:A", {in_time, late, rigid("c", 2, 1, 10)}, "fifo");
  result.jobs.push_back({.id = "d", .deadline_ms = 1});
  const Summary sum = summarise(result);
  EXPECT_EQ(sum.deadlines, 3);
  EXPECT_EQ(sum.deadlines_met, 1);
  const std::string text = to_csv(result);
  const Csv csv = Csv::parse("jobs", text, Csv::header_of(text)).value();
  ASSERT_EQ(csv.size(), 4u);
  EXPECT_EQ(csv.row(0).text("deadline_s"), "20.000");
  EXPECT_EQ(csv.row(0).text("on_time"), "1");
  EXPECT_EQ(csv.row(1).text("on_time"), "0");
  EXPECT_EQ(csv.row(2).text("on_time"), "");
  EXPECT_EQ(csv.row(3).text("on_time"), "0");
  EXPECT_NE(to_json(result.cluster, {sum}).find("\"deadlinesMet\": 1"), std::string::npos);
  EXPECT_NE(page_of({result}).find("<td>1 of 3</tr>"), std::string::npos);
}

TEST(SimReport, FailuresAndWhatTheyCostAreSaidWhereNodesFail) {
  SimResult result = play("1x1:A", {rigid("a", 0, 1, 10)}, "fifo");
  EXPECT_EQ(to_json(result.cluster, {summarise(result)}).find("ailures"), std::string::npos);
  EXPECT_EQ(page_of({result}).find("failures"), std::string::npos);
  result.failures = 3;
  result.jobs[0].lost_gpu_ms = 5'400'000;
  const std::string text = to_json(result.cluster, {summarise(result)});
  EXPECT_NE(text.find("\"failures\": 3,"), std::string::npos) << text;
  EXPECT_NE(text.find("\"lostGpuHours\": 1.5"), std::string::npos) << text;
  const std::string page = page_of({result});
  EXPECT_NE(page.find("<th>failures<th>lost GPU hours</tr>"), std::string::npos) << page;
  EXPECT_NE(page.find("<td>3<td>1.5</tr>"), std::string::npos) << page;
}

TEST(SimReport, NamesOfAnyKindAreReadBackFromTheCsv) {
  SimResult result;
  for (const char* name : {"plain", "a,b", "c\"d", "\"e\"", " f ", "#g", "h\ti", ",", "\""})
    result.jobs.push_back({.id = name, .queue = name});
  const std::string text = to_csv(result);
  const Csv csv = Csv::parse("jobs", text, Csv::header_of(text)).value();
  ASSERT_EQ(csv.size(), result.jobs.size());
  for (std::size_t i = 0; i < csv.size(); ++i) {
    EXPECT_EQ(csv.row(i).text("id"), result.jobs[i].id);
    EXPECT_EQ(csv.row(i).text("queue"), result.jobs[i].queue);
  }
}

TEST(SimReport, DecisionTimesAreKnownToAPartIn128) {
  DecisionTimes times;
  EXPECT_EQ(times.percentile_ns(0.5), 0);
  double sum = 0;
  for (std::int64_t ns = 100'000; ns >= 0; --ns) {
    times.add(ns);
    sum += static_cast<double>(ns);
  }
  EXPECT_EQ(times.count(), 100'001);
  EXPECT_EQ(times.worst_ns(), 100'000);
  EXPECT_EQ(times.total_ns(), sum);
  for (const double share : {0.0, 0.001, 0.5, 0.99, 1.0}) {
    const double exact = std::min(share * 100'001, 100'000.0);
    EXPECT_LE(static_cast<double>(times.percentile_ns(share)), exact);
    EXPECT_GE(static_cast<double>(times.percentile_ns(share)), exact * 127 / 128 - 1);
  }
}

}  // namespace
}  // namespace rubato::sched::sim
