#include "tools/rubatoctl/demo/demo.h"

#include "common/json.h"
#include "common/words.h"
#include "tools/rubatoctl/demo/compare.h"
#include "tools/rubatoctl/demo/job_watch.h"
#include "tools/rubatoctl/demo/python.h"
#include "tools/rubatoctl/demo/schedule.h"
#include "tools/rubatoctl/demo/story.h"
#include "tools/rubatoctl/demo/terminal.h"
#include "tools/rubatoctl/local/cluster.h"
#include "tools/rubatoctl/local/commands.h"
#include "tools/rubatoctl/local/data.h"
#include "tools/rubatoctl/local/process.h"
#include "tools/rubatoctl/manifests.h"
#include "tools/rubatoctl/objects.h"
#include "tools/rubatoctl/view/plot.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <system_error>
#include <utility>

#include <fmt/core.h>

namespace rubato::ctl {

namespace fs = std::filesystem;
using json::Value;
namespace {

constexpr auto kPump = 50ms;
constexpr auto kFaultLimit = 120s;  // from arming a fault to its firing
constexpr auto kFaultPoll = 5ms;
constexpr auto kNoProgressLimit = 180s;
constexpr std::int64_t kStepsMore = 20;  // after all was seen
constexpr auto kDownGrace = 5s;
constexpr const char* kFaultPhase = "reduce";
constexpr const char* kPrompt = "In the beginning";

Error interrupted() { return Error(Code::kCancelled, "interrupted"); }

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class Demo {
 public:
  Demo(Executor& executor, DemoOptions options)
      : executor_(executor), options_(std::move(options)), terminal_(executor) {}
  Status run();

 private:
  Status prepare();
  Status start_cluster();
  Status put_data(const DemoJob& job);
  Status elastic_run();
  Status act(DemoAct act, JobWatch& watch);
  Status lose_a_node(JobWatch& watch);
  Status undisturbed_run();
  Status watch_until(JobWatch& watch, const DemoJob& job, const std::function<bool()>& is_over,
                     DemoSchedule* schedule);
  Status watch_to_end(JobWatch& watch, const DemoJob& job);
  Status end_soon(const JobWatch& watch);
  void show(const JobWatch& watch, const DemoJob& job);
  void report(const JobWatch& watch);
  Status generate_text();
  Status compare();
  void stop();

  // Stops at a named phase of a step; an installed rubatoctl has none beside it.
  std::string testing_worker() const {
    const std::string program =
        story_->job().is_pytorch ? testing_library() : program_folder() + "/testing/rubato-worker";
    return fs::exists(program) ? program : "";
  }
  std::string state() const { return folder_ + "/cluster"; }
  std::string checkpoints(const DemoJob& job) const {
    return cluster_->claim_folder(job.ns, job.checkpoint_claim) + "/" + job.checkpoint_folder;
  }

  Executor& executor_;
  DemoOptions options_;
  Terminal terminal_;
  std::string folder_;
  std::unique_ptr<DemoStory> story_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<Session> session_;
  std::vector<Mark> marks_;
  std::string fault_line_;
  bool is_waiting_ = false;  // for the first step of the job that is shown
};

Status Demo::run() {
  catch_interrupts();
  const auto all = [&]() -> Status {
    TRY_OK(prepare());
    TRY_OK(start_cluster());
    terminal_.heading("The King James Bible, one token per byte");
    TRY_OK(put_data(story_->job()));
    TRY_OK(elastic_run());
    if (!story_->job().is_pytorch) TRY_OK(generate_text());
    TRY_OK(undisturbed_run());
    return compare();
  };
  Status done = all();
  if (!done.ok()) terminal_.say("it ends here: " + done.error().what());
  stop();
  if (folder_.empty()) return done;
  if (done.ok() && !options_.keep) {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
    return done;
  }
  terminal_.say(
      fmt::format("logs are in {0}/logs and {0}/nodes, checkpoints in {0}/claims", state()));
  return done;
}

void Demo::stop() {
  session_.reset();
  if (!cluster_) return;
  const Status down = cluster_->down(kDownGrace);
  terminal_.say(down.ok() ? "everything it started is stopped"
                          : "stopping failed: " + down.error().what());
  cluster_.reset();
}

// ---- Before
// --------------------------------------------------------------------------------------

Status Demo::prepare() {
  const std::string example =
      shared_folder("examples") +
      (options_.runtime == "pytorch" ? "/pytorch-kjv.yaml" : "/gpt-kjv.yaml");
  const std::string manifest = options_.manifest.empty() ? example : options_.manifest;
  const std::string text = text_of(manifest);
  if (text.empty())
    return Error(Code::kNotFound, "cannot read " + manifest +
                                      "\n  What to do: name the example with --filename FILE");
  auto manifests = read_manifests(text);
  if (!manifests.ok()) return manifests.error().in(manifest);
  auto story = DemoStory::make(std::move(manifests).value(), options_.steps);
  if (!story.ok()) return story.error().in(manifest);
  story_ = std::make_unique<DemoStory>(std::move(story).value());

  std::error_code error;
  std::string folder = fs::temp_directory_path(error).string() + "/rubato-demo-XXXXXX";
  if (!error && ::mkdtemp(folder.data()) == nullptr) error.assign(errno, std::generic_category());
  if (error)
    return Error(Code::kUnavailable,
                 fmt::format("the demo's folder cannot be made: {}\n  What to do: set TMPDIR to a "
                             "folder that you may write to",
                             error.message()));
  if (story_->job().is_pytorch) {
    const auto python = find_python(executor_, options_.python, folder, is_interrupted);
    if (!python.ok()) {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
      return python.error();
    }
    story_->set_python(*python);
  }
  folder_ = folder;
  return ok();
}

Status Demo::start_cluster() {
  terminal_.heading("A cluster on this machine");
  LocalSettings settings;
  settings.state = state();
  settings.programs = program_folder();
  TRY(settings.crds, crds_folder(options_.crds));
  settings.ends_with_us = true;
  settings.is_interrupted = is_interrupted;
  settings.say = [this](const std::string& text) { terminal_.say(text); };
  TRY(cluster_, LocalCluster::open(executor_, settings, true));
  TRY_OK(cluster_->up(2, 1));
  TRY(session_, Session::open({cluster_->kubeconfig(), "", story_->job().ns}));
  return is_interrupted() ? Status(interrupted()) : ok();
}

Status Demo::put_data(const DemoJob& job) {
  const DataPlace place{job.ns, job.data_claim, job.data_file};
  TRY(const std::uint64_t bytes, job.is_pytorch
                                     ? put_plain_bible(executor_, *cluster_, place, is_interrupted)
                                     : put_bible(executor_, *cluster_, place, is_interrupted));
  terminal_.say(
      fmt::format("{:.1f} MB of text in {}", static_cast<double>(bytes) / 1e6, job.data_claim));
  if (!job.is_pytorch) return ok();
  const std::string script = shared_folder("examples") + "/pytorch/kjv.py";
  std::error_code error;
  fs::copy_file(script, cluster_->claim_folder(job.ns, job.data_claim) + "/" + job.script_file,
                error);
  return error ? Status(Error(Code::kNotFound, script + ": " + error.message())) : ok();
}

// ---- The run with changes
// ------------------------------------------------------------------------

Status Demo::elastic_run() {
  const DemoJob& job = story_->job();
  terminal_.heading(
      fmt::format("{} ({}) on 2 to 4 GPUs, {}", job.name, job.model, counted(job.steps, "step")));
  TRY_OK(apply_objects(*session_, story_->disturbed(testing_worker()), false));
  JobWatch watch(*session_, job.ns, job.name);
  watch.other = [this](const std::string&, const std::string& line) {
    if (line.starts_with("fault-point ")) fault_line_ = line;
    if (line.starts_with("validation ")) terminal_.say(line);
  };
  DemoSchedule schedule(demo_steps(job.steps));
  TRY_OK(watch_until(
      watch, job, [&] { return schedule.is_through() || watch.is_complete(); }, &schedule));
  if (!schedule.is_through())
    return Error(Code::kInternal, "the job ended before the demo saw " + schedule.missing());
  TRY_OK(end_soon(watch));
  TRY_OK(watch_to_end(watch, job));
  story_->set_steps(watch.steps_done());
  report(watch);
  return ok();
}

// It may be past that step when it hears of it: then it ends where it is.
Status Demo::end_soon(const JobWatch& watch) {
  const DemoJob& job = story_->job();
  story_->set_steps(std::max(job.steps, watch.step() + kStepsMore));
  const auto stop = Value::object({{"stop", Value::object({{"steps", job.steps}})}});
  return patch_job(*session_, job.name, Value::object({{"training", stop}}));
}

Status Demo::watch_until(JobWatch& watch, const DemoJob& job, const std::function<bool()>& is_over,
                         DemoSchedule* schedule) {
  std::int64_t last_step = 0;
  MonoTime last_change = executor_.now();
  while (!is_over()) {
    if (is_interrupted()) return interrupted();
    TRY_OK(watch.pump(executor_.now() + kPump));
    show(watch, job);
    if (watch.step() != last_step) last_change = executor_.now();
    last_step = watch.step();
    if (executor_.now() - last_change > kNoProgressLimit)
      return Error(Code::kTimeout, fmt::format("no new step for {} s", kNoProgressLimit.count()));
    if (schedule == nullptr) continue;
    if (const auto next = schedule->next(watch.step(), watch.gpus())) TRY_OK(act(*next, watch));
  }
  return ok();
}

Status Demo::watch_to_end(JobWatch& watch, const DemoJob& job) {
  TRY_OK(watch_until(
      watch, job, [&] { return watch.is_complete() && watch.step() >= watch.steps_done(); },
      nullptr));
  if (watch.conflicts() > 0)
    return Error(Code::kInternal, fmt::format("{} told with different loss bits",
                                              counted(watch.conflicts(), "step", "was", "were")));
  terminal_.say(fmt::format("{} is complete: {}, loss {:.4f}", job.name,
                            counted(watch.step(), "step"), watch.loss()));
  return ok();
}

void Demo::show(const JobWatch& watch, const DemoJob& job) {
  const bool was_waiting = std::exchange(is_waiting_, watch.steps().empty());
  if (is_waiting_) return terminal_.progress("waits for its first step", !was_waiting);
  const std::int64_t steps = std::max(job.steps, watch.step());
  const Pace pace = pace_of(watch.steps(), steps, job.tokens_per_step);
  terminal_.progress(
      fmt::format("{} {:>3}/{}  loss {:.4f}  GPUs {}  {} {}/s  ETA {}",
                  bar(static_cast<double>(watch.step()) / static_cast<double>(steps), 24),
                  watch.step(), steps, watch.loss(), watch.gpus(),
                  short_number(pace.tokens_per_second), job.is_pytorch ? "samples" : "tokens",
                  short_time(pace.remaining_seconds)),
      was_waiting);
}

Status Demo::act(DemoAct act, JobWatch& watch) {
  switch (act) {
    case DemoAct::kGrow:
      terminal_.say(fmt::format("step {}: two more nodes are switched on", watch.step()));
      marks_.push_back({static_cast<double>(watch.step()), '+'});
      for (int i = 0; i < 2; ++i) {
        const auto added = cluster_->add_node("", 1);
        if (!added.ok()) return added.error();
      }
      return ok();
    case DemoAct::kLose:
      return lose_a_node(watch);
    case DemoAct::kReplace: {
      terminal_.say(fmt::format("step {}: a new node is switched on", watch.step()));
      marks_.push_back({static_cast<double>(watch.step()), '+'});
      const auto added = cluster_->add_node("", 1);
      return added.ok() ? ok() : Status(added.error());
    }
  }
  return ok();
}

// The worker on the victim stops itself at the named phase, and says so by removing the fault file;
// then the node, with all that runs on it, is killed.
Status Demo::lose_a_node(JobWatch& watch) {
  const std::string node = watch.last_node();
  if (testing_worker().empty()) {
    TRY_OK(cluster_->kill_node(node));
    marks_.push_back({static_cast<double>(watch.step()), 'x'});
    terminal_.say(
        fmt::format("step {}: node {} loses its power (SIGKILL)", watch.step() + 1, node));
    return ok();
  }
  const std::string file = checkpoints(story_->job()) + "/faults/" + node;
  fs::create_directories(fs::path(file).parent_path());
  {
    std::ofstream out(file + ".new");
    out << kFaultPhase << "::stop\n";
  }
  fs::rename(file + ".new", file);
  const MonoTime deadline = executor_.now() + kFaultLimit;
  while (fs::exists(file)) {
    if (is_interrupted()) return interrupted();
    if (executor_.now() > deadline)
      return Error(Code::kTimeout, "no worker on node " + node + " reached phase " + kFaultPhase);
    executor_.sleep_for(kFaultPoll);
  }
  TRY_OK(cluster_->kill_node(node));
  TRY_OK(watch.pump(executor_.now() + kPump));
  marks_.push_back({static_cast<double>(watch.step()), 'x'});
  terminal_.say(fmt::format(
      "step {}: node {} loses its power (SIGKILL) in phase {}: gradients are computed, their sum "
      "is under way",
      watch.step() + 1, node, kFaultPhase));
  return ok();
}

// ---- After
// ---------------------------------------------------------------------------------------

void Demo::report(const JobWatch& watch) {
  terminal_.heading("The loss");
  std::vector<Point> points;
  for (const auto& [step, seen] : watch.steps())
    points.push_back({static_cast<double>(step), seen.line.loss});
  terminal_.print(plot(points, marks_));
  terminal_.print("          + nodes come   x a node is lost\n");
  terminal_.heading("What each change cost");
  terminal_.print(render(cost_table(costs_of(watch.steps(), watch.rescales()))));
}

Status Demo::generate_text() {
  terminal_.heading("What it learned");
  const std::string out = folder_ + "/generated.txt";
  TRY_OK(run_program(
      executor_,
      {program_folder() + "/rubato-generate", "--checkpoint", checkpoints(story_->job()),
       "--prompt", kPrompt, "--tokens", "240", "--temperature", "0.7", "--seed", "1"},
      out, is_interrupted));
  terminal_.print(text_of(out));
  return ok();
}

Status Demo::undisturbed_run() {
  const DemoJob job = story_->undisturbed_job();
  terminal_.heading("The same job on 1 GPU, undisturbed");
  if (job.data_claim != story_->job().data_claim) TRY_OK(put_data(job));
  TRY_OK(apply_objects(*session_, story_->undisturbed(), false));
  JobWatch watch(*session_, job.ns, job.name);
  return watch_to_end(watch, job);
}

Status Demo::compare() {
  terminal_.heading("Is it the same?");
  TRY(const auto verdicts,
      compare_checkpoints(checkpoints(story_->job()), checkpoints(story_->undisturbed_job())));
  TextTable table{{"FILE", "2-4-3-4 GPUS", "1 GPU", ""}, {}};
  bool all = true;
  for (const FileVerdict& verdict : verdicts) {
    all = all && verdict.equal;
    table.rows.push_back({verdict.file, verdict.first_hash.substr(0, 16),
                          verdict.second_hash.substr(0, 16),
                          verdict.equal ? "equal" : "DIFFERENT, " + verdict.difference});
  }
  terminal_.print(render(table));
  if (!all) return Error(Code::kInternal, "the two runs are not equal: a defect, please report it");
  terminal_.print(fmt::format(
      "\nequal: the loss of all {} steps and every weight, bit for bit ({:.0f} s in all)\n",
      story_->job().steps, terminal_.seconds()));
  return ok();
}

}  // namespace

Status run_demo(Executor& executor, const DemoOptions& options) {
  Demo demo(executor, options);
  Status done = demo.run();
  if (done.ok()) return done;
  return Error(done.error().code(), "the demo failed: " + done.error().what());
}

}  // namespace rubato::ctl
