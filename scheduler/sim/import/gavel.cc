// Gavel's table of throughputs, its traces, and jobs as its generator draws them.
#include "common/json.h"
#include "common/words.h"
#include "scheduler/sim/import/csv.h"
#include "scheduler/sim/import/draws.h"
#include "scheduler/sim/import/generate.h"
#include "scheduler/sim/import/importers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/format.h>

namespace rubato::sched::sim {
namespace {

constexpr std::size_t kCells = 7;
constexpr std::string_view kApart = "_unconsolidated";  // pods of one job on several nodes
constexpr std::string_view kAlone = "null";             // nobody shares its GPUs
constexpr Gpus kMadeMost = 8;                           // that the generator asks for
constexpr const char* kReference = "v100";              // durations are on it
constexpr double kBusyLeast = 0.05;
constexpr std::int64_t kStepsMost = 1'000'000'000'000;

// "('A3C', 1)": model and GPUs.
std::optional<std::pair<std::string, Gpus>> model_and_gpus(std::string_view key) {
  constexpr std::string_view kBegin = "('", kBetween = "', ", kEnd = ")";
  const std::size_t between = key.rfind(kBetween);
  if (!key.starts_with(kBegin) || !key.ends_with(kEnd) || between == std::string_view::npos ||
      between < kBegin.size())
    return std::nullopt;
  const std::string_view number = key.substr(between + kBetween.size());
  Gpus gpus = 0;
  const auto [end, wrong] = std::from_chars(number.data(), number.data() + number.size(), gpus);
  if (wrong != std::errc() || end != number.data() + number.size() - kEnd.size() || gpus < 1 ||
      gpus > kGpusMax)
    return std::nullopt;
  return std::pair(std::string(key.substr(kBegin.size(), between - kBegin.size())), gpus);
}

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  while (true) {
    const std::size_t tab = line.find('\t');
    cells.push_back(line.substr(0, tab));
    if (tab == std::string_view::npos) return cells;
    line.remove_prefix(tab + 1);
  }
}

template <class T>
bool read_number(std::string_view text, T least, T most, T& to) {
  const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), to);
  return wrong == std::errc() && end == text.data() + text.size() && to >= least && to <= most;
}

// Rigid, on the types on which it was measured with so many GPUs.
void describe_gavel(const GavelSpeeds& speeds, const std::string& model, TraceJob& job) {
  job.min = job.max = job.request;
  job.profile = model;
  const auto of_model = speeds.alone.find(model);
  if (of_model == speeds.alone.end()) return;
  const auto found = of_model->second.find(job.request);
  if (found == of_model->second.end()) return;
  for (const auto& [type, steps_per_second] : found->second)
    job.speed.add(type, {job.request, steps_per_second});
  if (const auto shared = speeds.sharing.find(model); shared != speeds.sharing.end())
    if (const auto pairs = shared->second.find(job.request); pairs != shared->second.end())
      job.sharing = pairs->second;
}

using Pairs = SharingProfile::Measured;

SharingProfile profile_of(const std::string& model, const Pairs& pairs) {
  SharingProfile profile{.use = {.busy = kBusyLeast},
                         .measured = std::make_shared<const Pairs>(pairs)};
  for (const auto& [with, part] : pairs) {
    profile.use.beside_another += part / static_cast<double>(pairs.size());
    if (with.first == model && part > 0)
      profile.use.busy = std::max(profile.use.busy, std::min(1 / (2 * part), 1.0));
  }
  return profile;
}

// That ran on the reference type, with so many GPUs.
std::vector<const std::string*> models_with(const GavelSpeeds& speeds, Gpus gpus) {
  std::vector<const std::string*> models;
  for (const auto& [model, by_gpus] : speeds.alone) {
    const auto found = by_gpus.find(gpus);
    if (found != by_gpus.end() && found->second.contains(kReference)) models.push_back(&model);
  }
  return models;
}

}  // namespace

bool is_gavel_trace(const TraceText& trace) {
  const auto first = Lines(trace.text).next();
  return first && cells_of(*first).size() == kCells;
}

Result<GavelSpeeds> read_gavel_speeds(const TraceText& table) {
  auto parsed = json::parse(table.text);
  if (!parsed.ok()) return parsed.error().in(table.file);
  GavelSpeeds speeds;
  std::map<std::pair<std::string, Gpus>, Pairs> pairs;
  for (const auto& [type, jobs] : parsed->members()) {
    if (type.ends_with(kApart)) continue;
    for (const auto& [key, rates] : jobs.members()) {
      const auto job = model_and_gpus(key);
      const double alone = rates[kAlone].double_or(-1);
      if (!job || !std::isfinite(alone) || alone < 0)
        return Error(Code::kInvalid, fmt::format("{}: {}: \"{}\": expected ('MODEL', GPUS) with a "
                                                 "rate of steps a second as \"{}\"",
                                                 table.file, excerpt(type), excerpt(key), kAlone));
      if (alone <= 0) continue;
      speeds.alone[job->first][job->second][type] = alone;
      for (const auto& [other, both] : rates.members()) {
        const auto beside = model_and_gpus(other);
        if (!beside || beside->second != job->second) continue;
        const double rate = both[0].double_or(0);
        pairs[*job][{beside->first, type}] = std::clamp(rate / alone, 0.0, 1.0);
      }
    }
  }
  for (const auto& [job, of_job] : pairs)
    speeds.sharing[job.first][job.second] = profile_of(job.first, of_job);
  if (speeds.alone.empty())
    return Error(Code::kInvalid,
                 fmt::format("{}: expected an object with GPU types as names", table.file));
  return speeds;
}

Result<std::vector<TraceJob>> read_gavel(const TraceText& trace, const GavelSpeeds& speeds) {
  std::vector<TraceJob> jobs;
  Lines lines(trace.text);
  while (const auto line = lines.next()) {
    const std::vector<std::string_view> cells = cells_of(*line);
    const auto bad = [&](const std::string& why) {
      return Error(Code::kInvalid, fmt::format("{}:{}: {}", trace.file, lines.number(), why));
    };
    const auto bad_cell = [&](std::size_t column, const std::string& expected) {
      return bad(fmt::format("column {}: \"{}\": expected {}", column + 1, excerpt(cells[column]),
                             expected));
    };
    if (cells.size() != kCells)
      return bad(
          fmt::format("has {} cells; expected {}, with tabs between them", cells.size(), kCells));
    TraceJob job;
    std::int64_t steps = 0;
    double submit_s = 0;
    if (!read_number<std::int64_t>(cells[4], 1, kStepsMost, steps))
      return bad_cell(4, fmt::format("steps, a whole number from 1 to {}", kStepsMost));
    if (!read_number(cells[5], 0.0, kSecondsMax, submit_s))
      return bad_cell(
          5, fmt::format("the time of submission in seconds, from 0 to {:g}", kSecondsMax));
    if (!read_number<Gpus>(cells[6], 1, kGpusMax, job.request))
      return bad_cell(6, fmt::format("a number of GPUs from 1 to {}", kGpusMax));
    job.line = lines.number();
    job.id = fmt::format("gavel-{:06}", job.line);
    job.submit_ms = std::llround(submit_s * 1000);
    job.work = static_cast<double>(steps);
    describe_gavel(speeds, std::string(cells[0]), job);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

Result<std::vector<TraceJob>> gavel_trace(const PoissonOptions& options,
                                          const GavelSpeeds& speeds) {
  for (Gpus gpus = 1; gpus <= kMadeMost; gpus *= 2)
    if (models_with(speeds, gpus).empty())
      return Error(Code::kInvalid,
                   fmt::format("the table has no model on {} of type {}, on which the "
                               "generator takes its durations",
                               counted(gpus, "GPU"), kReference));
  Draws draws(options);
  std::vector<TraceJob> jobs;
  for (std::int64_t i = 0; i < options.jobs; ++i) {
    auto [job, seconds] = draws.next();
    const auto models = models_with(speeds, job.request);
    const std::string& model = *models[draws.rng().below(models.size())];
    describe_gavel(speeds, model, job);
    job.work = std::max(std::floor(seconds * job.speed.at(kReference, job.request)), 1.0);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace rubato::sched::sim
