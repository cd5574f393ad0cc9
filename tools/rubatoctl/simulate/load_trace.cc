#include "scheduler/sim/import/generate.h"
#include "scheduler/sim/import/importers.h"
#include "tools/rubatoctl/simulate/simulate.h"

#include <charconv>
#include <deque>

#include <fmt/format.h>

namespace rubato::ctl {

using namespace sched::sim;  // NOLINT: its names fill this file

namespace {

constexpr std::size_t kTraceBytes = 1u << 30;
constexpr std::size_t kProfileBytes = 64u << 20;

// Texts that TraceTexts point into, for as long as a trace is read.
class Texts {
 public:
  Result<TraceText> read(const std::string& path, std::size_t most) {
    TRY(std::string text, read_input(path, most));
    texts_.push_back(std::move(text));
    return TraceText{path, texts_.back()};
  }

 private:
  std::deque<std::string> texts_;
};

// "validation-128.csv": 128; 0: another file.
std::int64_t batch_in(const std::string& name) {
  constexpr std::string_view kBefore = "validation-";
  if (!name.starts_with(kBefore) || !name.ends_with(".csv")) return 0;
  std::int64_t batch = 0;
  const char* end = name.data() + name.size() - 4;
  const auto [stopped, wrong] = std::from_chars(name.data() + kBefore.size(), end, batch);
  return wrong == std::errc() && stopped == end ? batch : 0;
}

Result<std::vector<std::string>> applications_with_profiles(const TraceText& trace,
                                                            const std::string& folder,
                                                            const char* files) {
  if (!folder.empty()) return applications_in(trace);
  return Error(Code::kInvalid,
               fmt::format("{} names applications; give the folder of their profiles "
                           "(APPLICATION/{}): --profiles FOLDER",
                           trace.file, files));
}

Result<std::vector<TraceJob>> load_pollux(FileSystem& files, Texts& texts, const TraceText& trace,
                                          const std::string& folder, bool adapt) {
  TRY(const auto names,
      applications_with_profiles(trace, folder,
                                 "placements.csv, scalability.csv, validation-BATCH.csv"));
  std::map<std::string, PolluxProfile> profiles;
  for (const std::string& name : names) {
    const std::string of_it = folder + "/" + name;
    PolluxProfile& profile = profiles[name];
    TRY(profile.placements, texts.read(of_it + "/placements.csv", kProfileBytes));
    TRY(profile.scalability, texts.read(of_it + "/scalability.csv", kProfileBytes));
    TRY(const auto inside, files.list(of_it));
    for (const std::string& file : inside) {
      if (const std::int64_t batch = batch_in(file); batch > 0) {
        TRY(profile.validation[batch], texts.read(of_it + "/" + file, kProfileBytes));
      }
    }
  }
  return adapt ? read_pollux_batches(trace, profiles) : read_pollux(trace, profiles);
}

Result<std::vector<TraceJob>> load_rubick(Texts& texts, const TraceText& trace,
                                          const std::string& folder) {
  TRY(const auto names, applications_with_profiles(trace, folder, "placements.csv"));
  std::map<std::string, TraceText> placements;
  for (const std::string& name : names) {
    TRY(placements[name], texts.read(folder + "/" + name + "/placements.csv", kProfileBytes));
  }
  return read_rubick(trace, placements);
}

Result<GavelSpeeds> load_speeds(Texts& texts, const SimulateOptions& options) {
  TRY(const TraceText table, texts.read(options.throughputs, kProfileBytes));
  return read_gavel_speeds(table);
}

Result<std::vector<TraceJob>> make_trace(Texts& texts, const SimulateOptions& options) {
  const PoissonOptions made{.seed = static_cast<std::uint64_t>(options.seed),
                            .jobs = options.jobs,
                            .jobs_per_hour = options.per_hour,
                            .elastic_factor = options.elastic};
  if (options.throughputs.empty()) return poisson_trace(made);
  if (options.elastic > 1)
    return Error(Code::kInvalid, "--elastic: jobs of --throughputs have the size they ask for");
  TRY(const GavelSpeeds speeds, load_speeds(texts, options));
  return gavel_trace(made, speeds);
}

Result<std::vector<TraceJob>> load_gavel(Texts& texts, const TraceText& trace,
                                         const SimulateOptions& options) {
  if (options.throughputs.empty())
    return Error(Code::kInvalid,
                 fmt::format("{} names models; give the table of their speeds: --throughputs FILE",
                             trace.file));
  TRY(const GavelSpeeds speeds, load_speeds(texts, options));
  return read_gavel(trace, speeds);
}

Result<std::vector<TraceJob>> read_any(FileSystem& files, const SimulateOptions& options) {
  Texts texts;
  if (options.trace.empty()) return make_trace(texts, options);
  TRY(const TraceText trace, texts.read(options.trace, kTraceBytes));
  TRY(const TraceFormat format, format_of(trace));
  switch (format) {
    case TraceFormat::kRubato:
      return read_rubato(trace);
    case TraceFormat::kPhilly:
      return read_philly(trace);
    case TraceFormat::kItp:
      return read_itp(trace);
    case TraceFormat::kPollux:
      return load_pollux(files, texts, trace, options.profiles, options.mode == kPolluxMode);
    case TraceFormat::kRubick:
      return load_rubick(texts, trace, options.profiles);
    case TraceFormat::kGavel:
      return load_gavel(texts, trace, options);
  }
  return Error(Code::kInternal, "unknown format");
}

}  // namespace

Result<std::vector<TraceJob>> load_trace(FileSystem& files, const SimulateOptions& options) {
  TRY(auto jobs, read_any(files, options));
  sort_jobs(jobs);
  if (options.first > 0 && options.first < std::ssize(jobs))
    jobs.resize(static_cast<std::size_t>(options.first));
  if (jobs.empty())
    return Error(Code::kInvalid, options.trace + " has no job; expected a line for each");
  return jobs;
}

}  // namespace rubato::ctl
