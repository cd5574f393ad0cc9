// rubatoctl: one habit with kubectl for training jobs, and a whole cluster on one machine.
#include "common/files.h"
#include "common/gpu_types.h"
#include "common/log.h"
#include "common/standard_output.h"
#include "common/version.h"
#include "tools/rubatoctl/checkpoints.h"
#include "tools/rubatoctl/completion.h"
#include "tools/rubatoctl/demo/demo.h"
#include "tools/rubatoctl/doctor/doctor.h"
#include "tools/rubatoctl/doctor/machine_checks.h"
#include "tools/rubatoctl/durations.h"
#include "tools/rubatoctl/explain.h"
#include "tools/rubatoctl/local/commands.h"
#include "tools/rubatoctl/objects.h"
#include "tools/rubatoctl/plan_command.h"
#include "tools/rubatoctl/simulate/command.h"
#include "tools/rubatoctl/training.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include <CLI/CLI.hpp>
#include <fmt/core.h>

namespace rubato::ctl {
namespace {

constexpr int kTimeoutMost = 7 * 86400;  // seconds

const char* const kAbout =
    "Elastic training jobs from the command line, on any cluster or on this machine alone.\n\n"
    "A cluster on this machine, and a job on it:\n"
    "  rubatoctl local up --nodes 2\n"
    "  rubatoctl apply -f examples/gpt-kjv.yaml\n"
    "  rubatoctl get tj -w\n"
    "  rubatoctl logs gpt-kjv -f\n"
    "Give it more, take something away, while it trains:\n"
    "  rubatoctl node add            rubatoctl node kill n2        rubatoctl scale gpt-kjv --max "
    "3\n"
    "What it learned:\n"
    "  rubatoctl loss gpt-kjv -o plot\n"
    "  rubatoctl generate --checkpoint DIR --prompt \"In the beginning\"\n"
    "What is wrong, and what to do about it:\n"
    "  rubatoctl doctor\n"
    "Which policy suits a trace of jobs, without any cluster:\n"
    "  rubatoctl simulate --nodes 16x4:T4 --compare marginalThroughput,fifo,srtf\n"
    "All of it in one go, with a proof at the end:\n"
    "  rubatoctl local demo";

// One command line: what it says, and what to do about it.
class Program {
 public:
  Program() : app_(kAbout, "rubatoctl") {
    app_.set_version_flag("--version", version_of("rubatoctl"));
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.failure_message(refusal);
    app_.add_option("--kubeconfig", cluster_.kubeconfig,
                    "Which cluster (default: $KUBECONFIG, ~/.kube/config, the local one, then "
                    "that of the pod this runs in)");
    app_.add_option("--context", cluster_.context, "Context of the kubeconfig");
    app_.add_option("-n,--namespace", cluster_.ns, "Namespace (default: the kubeconfig's)");
    state_ = default_local_state();
    add_object_commands();
    add_job_commands();
    add_training_commands();
    add_checkpoint_commands();
    add_doctor_command();
    add_plan_command(*command(app_, "plan", kPlanAbout, [this] { return run_plan(plan_); }), plan_);
    add_what_if_command(
        *command(app_, "what-if", kWhatIfAbout, [this] { return what_if(what_if_); }), what_if_);
    add_explain_command(
        *command(app_, "explain", kExplainAbout, [this] { return explain(explain_, cluster_); }),
        explain_);
    add_simulate_command(app_, simulate_)->callback([this] {
      action_ = [this] { return run_simulate(files_, simulate_); };
    });
    add_node_commands();
    add_local_commands();
    auto* completion = command(app_, "completion",
                               "Completion for bash: source <(rubatoctl "
                               "completion bash)",
                               [this] { return complete(); });
    completion->add_option("shell", shell_, "bash")->required()->check(CLI::IsMember({"bash"}));
  }

  int run(int argc, char** argv) {
    CLI11_PARSE(app_, argc, argv);
    if (!action_) {
      std::fputs(app_.help().c_str(), stdout);
      return 1;
    }
    const Status done = action_();
    if (done.ok()) return 0;
    std::fflush(stdout);
    fmt::print(stderr, "rubatoctl: {}\n", done.error().what());
    return 1;
  }

 private:
  using Action = std::function<Status()>;
  using SessionAction = std::function<Status(Session&)>;

  CLI::App* command(CLI::App& parent, const char* name, const std::string& about, Action action) {
    CLI::App* sub = parent.add_subcommand(name, about);
    sub->callback([this, action = std::move(action)] { action_ = action; });
    return sub;
  }
  // A command that talks to a cluster.
  CLI::App* talk(CLI::App& parent, const char* name, const char* about, SessionAction action) {
    return command(parent, name, about, [this, action = std::move(action)]() -> Status {
      TRY(const auto session, Session::open(cluster_));
      return action(*session);
    });
  }

  void add_object_commands() {
    auto* get_command = talk(app_, "get", "List objects: tj, queues, nodes, pods, pvc, events …",
                             [this](Session& s) { return get(s, get_); });
    get_command->add_option("resource", get_.resource, "tj, pods, tj/NAME …")
        ->capture_default_str();
    get_command->add_option("names", get_.names, "only these");
    get_command->add_option("-o,--output", get_.output, "wide, yaml, json or name")
        ->check(CLI::IsMember({"wide", "yaml", "json", "name"}));
    get_command->add_option("-l,--selector", get_.selector, "label selector");
    get_command->add_flag("-w,--watch", get_.watch, "go on with every change");
    get_command->add_flag("-A,--all-namespaces", get_.all_namespaces, "of all namespaces");

    auto* apply_command = talk(app_, "apply", "Create or change the objects of a manifest",
                               [this](Session& s) { return apply(s, file_, dry_run_); });
    apply_command->add_option("-f,--filename", file_, "YAML or JSON; - is standard input")
        ->required();
    apply_command->add_flag("--dry-run", dry_run_, "let the server check it, change nothing");

    auto* describe_command =
        talk(app_, "describe", "All about one object: conditions, allocation, events",
             [this](Session& s) -> Status {
               TRY(const NamedObject object, named_object(resource_, name_));
               return describe(s, object);
             });
    describe_command->add_option("resource", resource_, "tj, node, pod, tj/NAME …")->required();
    describe_command->add_option("name", name_, "its name");

    auto* delete_command =
        talk(app_, "delete", "Delete objects, and wait until they are gone", [this](Session& s) {
          delete_.timeout = std::chrono::seconds(delete_timeout_s_);
          return remove(s, delete_);
        });
    delete_command->add_option("resource", delete_.resource, "tj, pod, tj/NAME …");
    delete_command->add_option("names", delete_.names, "their names");
    delete_command->add_option("-f,--filename", delete_.file, "the objects of a manifest");
    delete_command->add_option("--wait", delete_.wait, "true or false")->capture_default_str();
    add_timeout(*delete_command, delete_timeout_s_);
  }

  static void add_timeout(CLI::App& sub, int& seconds) {
    const auto in_seconds = [](std::string& text) -> std::string {
      const auto wait = parse_wait(text);
      if (!wait.ok()) return wait.error().what();
      text = std::to_string(wait->count());
      return "";
    };
    sub.add_option("--timeout", seconds, "how long to wait: seconds, or as 1h30m")
        ->transform(CLI::Validator(in_seconds, ""))
        ->check(CLI::Range(0, kTimeoutMost))
        ->capture_default_str();
  }

  CLI::App* job_command(const char* name, const char* about, SessionAction action) {
    auto* sub = talk(app_, name, about, std::move(action));
    const auto without_kind = [](std::string& text) -> std::string {
      const auto job = job_named(text);
      if (!job.ok()) return job.error().what();
      text = *job;
      return "";
    };
    sub->add_option("job", name_, "name of the TrainingJob")
        ->transform(CLI::Validator(without_kind, ""))
        ->required();
    return sub;
  }

  void add_job_commands() {
    job_command("suspend", "Let a job write a checkpoint and give its GPUs back",
                [this](Session& s) { return set_suspended(s, name_, true); });
    job_command("resume", "Let a suspended job go on from its checkpoint",
                [this](Session& s) { return set_suspended(s, name_, false); });
    auto* scale_command = job_command("scale", "Change how many GPUs a job may hold",
                                      [this](Session& s) { return scale(s, name_, max_, min_); });
    scale_command->add_option("--max", max_, "at most so many")->check(CLI::Range(1, 1 << 20));
    scale_command->add_option("--min", min_, "at least so many")->check(CLI::Range(1, 1 << 20));
    auto* wait_command =
        job_command("wait", "Wait until a job's condition is True", [this](Session& s) {
          return wait_for(s.client(), s.executor(), {s.ns(), name_}, condition_,
                          std::chrono::seconds(wait_timeout_s_));
        });
    wait_command
        ->add_option("--for", condition_, "Running, Complete, Suspended …; also condition=complete")
        ->default_str("Complete");
    add_timeout(*wait_command, wait_timeout_s_);
  }

  void add_training_commands() {
    auto* logs_command = job_command("logs", "Loss lines once by step, others by pod",
                                     [this](Session& s) { return logs(s, name_, follow_); });
    logs_command->add_flag("-f,--follow", follow_, "go on until the job is finished");
    auto* loss_command = job_command("loss", "The loss of every step",
                                     [this](Session& s) { return loss(s, name_, output_); });
    loss_command->add_option("-o,--output", output_, "csv, table or plot")
        ->check(CLI::IsMember({"csv", "table", "plot"}))
        ->default_str("table");
    auto* top_command = talk(app_, "top", "A live table of all jobs",
                             [this](Session& s) { return top(s, get_.all_namespaces, once_); });
    top_command->add_flag("--once", once_, "print it once");
    top_command->add_flag("-A,--all-namespaces", get_.all_namespaces, "of all namespaces");
    other_program("generate", "rubato-generate",
                  "Text from a checkpoint: --checkpoint DIR --prompt TEXT --tokens N --seed N "
                  "--temperature T (all of rubato-generate's options)");
    other_program("export", "rubato-export",
                  "A checkpoint as a Hugging Face folder: --checkpoint DIR --out DIR "
                  "[--dtype bf16] [--shard-bytes N]");
    other_program("plan-step", "rubato-plan-step",
                  "What a training step takes on a GPU, predicted: --model PRESET --micro-batch N "
                  "--gpu " +
                      known_gpus() + " --precision bf16 (all of rubato-plan-step's options)");
    other_program("tokenize", "rubato-tokenize",
                  "A token file of text: [--tokenizer tokenizer.json] --out FILE TEXT… (all of "
                  "rubato-tokenize's options)");
  }
  static std::string known_gpus() {
    std::string names;
    for (const GpuType& type : gpu_types())
      names += (names.empty() ? "" : "|") + std::string(type.short_name);
    return names;
  }
  // A command whose words are those of another program, which takes our place.
  void other_program(const char* name, const char* program, const std::string& about) {
    const std::string path = program_folder() + "/" + program;
    auto* sub = command(app_, name, about, [this, path] { return become(path, other_words_); });
    sub->set_help_flag();  // --help is that program's, too
    sub->prefix_command();
    sub->fallthrough(false);
    sub->callback([this, sub, path] {
      other_words_ = sub->remaining();
      action_ = [this, path] { return become(path, other_words_); };
    });
  }

  // A command on a folder of checkpoints that prints what it did.
  using FolderAction = std::function<Result<std::string>()>;
  CLI::App* on_folder(CLI::App& parent, const char* name, const char* about, FolderAction action) {
    auto* sub = command(parent, name, about, [action = std::move(action)]() -> Status {
      TRY(const std::string text, action());
      std::fputs(text.c_str(), stdout);
      return ok();
    });
    sub->add_option("path", path_, "the folder: training.checkpoint.path, as this machine sees it")
        ->required();
    return sub;
  }

  // What was found is printed, also where the command fails for it.
  static Result<std::string> judged(const Result<CheckReport>& report) {
    if (!report.ok()) return report.error();
    const Status good = verdict(*report);
    if (good.ok()) return report->text;
    std::fputs(report->text.c_str(), stdout);
    return good.error();
  }

  void add_checkpoint_commands() {
    auto* checkpoint = app_.add_subcommand(
        "checkpoint",
        "A folder of checkpoints, with or without a cluster: list, verify, prune, release\n"
        "  rubatoctl checkpoint list /ckpt/gpt-kjv\n"
        "  rubatoctl checkpoint verify /ckpt/gpt-kjv        every byte; exit 1 if one is damaged\n"
        "  rubatoctl checkpoint prune /ckpt/gpt-kjv --keep 1 --damaged --dry-run");
    checkpoint->require_subcommand(1);
    auto* list = on_folder(*checkpoint, "list", "Which stand there, whose they are, what else",
                           [this] { return judged(list_checkpoints(files_, path_, output_)); });
    list->add_option("-o,--output", output_, "table or json")
        ->check(CLI::IsMember({"table", "json"}))
        ->default_str("table");
    auto* verify =
        on_folder(*checkpoint, "verify", "Read every byte and compare it with what was written",
                  [this] { return judged(verify_checkpoints(files_, path_, step_)); });
    verify->add_option("--step", step_, "this one only")->check(CLI::Range(0, 1 << 30));
    auto* prune =
        on_folder(*checkpoint, "prune",
                  "Remove all but the newest whole ones, and what dead writers left behind",
                  [this] { return prune_checkpoints(files_, path_, prune_); });
    prune->add_option("--keep", prune_.keep, "how many stay; 0 frees the folder for another job")
        ->check(CLI::Range(0, 1000))
        ->capture_default_str();
    prune->add_flag("--damaged", prune_.damaged,
                    "damaged ones, too, also those that were set aside");
    prune->add_flag("--dry-run", prune_.dry_run, "say what would go, remove nothing");
    on_folder(*checkpoint, "release",
              "Take them from their job: the next one that trains the same goes on from them",
              [this] { return release_checkpoints(files_, path_); });
  }

  void add_doctor_command() {
    auto* doctor_command = command(
        app_, "doctor",
        "What is wrong with this cluster, or this machine, and what to do about it\n\n"
        "Looks at the CRDs and whether they are of this build, at your rights and the operator's, "
        "at who leads, at\nimages that cannot be pulled, at nodes and the GPUs they offer, at "
        "policies and queues that are not in\nforce, at clocks, and at each job of the namespace: "
        "its state and why, its data, its checkpoints.\nOne line a check: ok, warning or WRONG, "
        "and the way out below it.\n"
        "Changes nothing. Exit status 1 when something is wrong; warnings alone are 0.\n\n"
        "  rubatoctl doctor                     the cluster, and the jobs of the namespace\n"
        "  rubatoctl doctor gpt-kjv             the cluster, and this job\n"
        "  rubatoctl doctor -n team-a           the jobs of another namespace\n"
        "  rubatoctl doctor --gpu-resource example.com/gpu\n"
        "  rubatoctl doctor --machine           this machine alone, without a cluster",
        [this]() -> Status {
          if (machine_) return doctor_of_machine();
          TRY(const auto session, Session::open(cluster_));
          doctor_.ns = session->ns();
          return doctor(*session, doctor_);
        });
    doctor_command->add_flag("--machine", machine_,
                             "this machine: processor, memory, room, programs, clock, GPU");
    doctor_command->add_option("job", doctor_.job, "this job only");
    doctor_command
        ->add_option("--operator-namespace", doctor_.operator_ns, "where the operator is installed")
        ->capture_default_str();
    doctor_command->add_option("--gpu-resource", doctor_.gpu_resource,
                               "what nodes offer (default: nvidia.com/gpu, amd.com/gpu, "
                               "rubato.dev/slot)");
  }

  void add_node_commands() {
    auto* node = app_.add_subcommand("node", "Nodes: list, cordon, drain; add and kill local ones");
    node->require_subcommand(1);
    talk(*node, "list", "All nodes, and when each gave its last sign of life",
         [](Session& s) { return node_list(s); });
    auto* add = command(*node, "add", "Add a node to the local cluster, or switch one on again",
                        [this] { return node_add(executor_, state_, name_, node_slots_, gpus_); });
    add->add_option("--name", name_, "its name (default: n and the next number)");
    add->add_option("--slots", node_slots_, "how many GPUs a new one plays (1)")
        ->check(CLI::Range(1, 64));
    add_gpus(*add);
    add_state(*add);
    auto* kill = command(*node, "kill", "Cut the power of a local node: SIGKILL to all it runs",
                         [this] { return node_kill(executor_, state_, name_); });
    kill->add_option("name", name_, "of the node")->required();
    add_state(*kill);
    const auto on_node = [&](const char* name, const char* about, SessionAction action) {
      auto* sub = talk(*node, name, about, std::move(action));
      sub->add_option("name", name_, "of the node")->required();
      return sub;
    };
    on_node("cordon", "No new pod for this node",
            [this](Session& s) { return cordon(s.client(), name_, true); });
    on_node("uncordon", "New pods again",
            [this](Session& s) { return cordon(s.client(), name_, false); });
    auto* drain_command = on_node(
        "drain",
        "Cordon, evict the pods, wait until they are gone; DaemonSets' and static ones stay",
        [this](Session& s) {
          return drain(s.client(), s.executor(), name_, std::chrono::seconds(drain_timeout_s_));
        });
    add_timeout(*drain_command, drain_timeout_s_);
  }

  void add_state(CLI::App& sub) {
    sub.add_option("--state", state_, "Folder of the local cluster")->capture_default_str();
  }

  void add_gpus(CLI::App& sub) {
    sub.add_option(
           "--gpus", gpus_.wanted,
           "GPUs of this machine, instead of playing some: auto, or numbers of device nodes "
           "(0,2); workers compute on them")
        ->excludes(sub.get_option("--slots"));
    // Of tests, on machines without.
    sub.add_option("--gpu-devices", gpus_.paths.devices)->group("");
    sub.add_option("--gpu-driver", gpus_.paths.driver)->group("");
  }

  void add_local_commands() {
    auto* local = app_.add_subcommand("local", "A whole cluster of processes on this machine");
    local->require_subcommand(1);
    auto* up =
        command(*local, "up", "Start it, or what of it does not run; prints KUBECONFIG",
                [this] { return local_up(executor_, {state_, crds_, nodes_, slots_, gpus_}); });
    up->add_option("--nodes", nodes_, "how many nodes, at least (2; 1 with --gpus)")
        ->check(CLI::Range(0, kNodesMax));
    up->add_option("--slots", slots_, "how many GPUs each new one plays")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    add_gpus(*up);
    up->add_option("--crds", crds_, "folder of the CustomResourceDefinitions");
    add_state(*up);
    auto* down = command(*local, "down", "Stop it", [this] {
      return local_down(executor_, state_, purge_, std::chrono::seconds(grace_s_));
    });
    down->add_flag("--purge", purge_, "remove its state, too");
    down->add_option("--grace", grace_s_, "seconds until what still runs is killed")
        ->check(CLI::Range(0, 600))
        ->capture_default_str();
    add_state(*down);
    auto* data = command(
        *local, "data",
        "Put texts, as tokens, where a job reads them; without any, the King James Bible", [this] {
          if (!cluster_.ns.empty()) place_.ns = cluster_.ns;
          return local_data(executor_, state_, texts_, place_);
        });
    data->add_option("texts", texts_, "text files, in order");
    data->add_option("--claim", place_.claim, "that the job mounts")->capture_default_str();
    data->add_option("--file", place_.file, "in it")->capture_default_str();
    data->add_option("-t,--tokenizer", place_.tokenizer,
                     "the model's tokenizer.json, or a folder that has one; without it bytes");
    add_state(*data);
    auto* status = command(*local, "status", "What of it runs",
                           [this] { return local_status(executor_, state_); });
    add_state(*status);
    add_demo_command(*local);
  }

  void add_demo_command(CLI::App& local) {
    auto* demo = command(local, "demo",
                         "A private cluster trains a model, grows, loses a node, goes on; then the "
                         "same job undisturbed: equal, or the command fails",
                         [this] { return run_demo(executor_, demo_); });
    demo->add_option("--steps", demo_.steps,
                     "so many at least (default: the manifest's); it trains on until all was seen")
        ->check(CLI::Range(100, 1000000));
    auto* runtime = demo->add_option(
        "--runtime", demo_.runtime,
        "builtin: examples/gpt-kjv.yaml. pytorch: examples/pytorch-kjv.yaml with the script "
        "examples/pytorch/kjv.py; wants a Python that has PyTorch");
    runtime->check(CLI::IsMember({"builtin", "pytorch"}))->capture_default_str();
    demo->add_option("--python", demo_.python, "which Python; `make demo-pytorch` brings one")
        ->capture_default_str();
    demo->add_option("-f,--filename", demo_.manifest,
                     "another manifest than that of --runtime, of either runtime")
        ->excludes(runtime);
    demo->add_option("--crds", demo_.crds, "folder of the CustomResourceDefinitions");
    demo->add_flag("--keep", demo_.keep, "leave its folder behind: logs, checkpoints");
  }

  // What CLI11 says of words that it cannot take; an unknown command is named.
  static std::string refusal(const CLI::App* app, const CLI::Error& error) {
    const std::vector<std::string> left = app->remaining(true);
    const auto word = std::ranges::find_if(
        left, [](const std::string& text) { return !text.empty() && text.front() != '-'; });
    std::string path = "rubatoctl";
    const CLI::App* last = app;
    while (!last->get_subcommands().empty()) {
      last = last->get_subcommands().back();
      path += " " + last->get_name();
    }
    if (last->get_require_subcommand_min() == 0 || word == left.end())
      return CLI::FailureMessage::simple(app, error);
    CommandWords words;
    collect(*last, "", words);
    std::erase_if(words[""], [](const std::string& name) { return name.starts_with('-'); });
    const std::string nearest = nearest_word(*word, words[""]);
    return fmt::format(
        "rubatoctl: there is no command \"{} {}\"{}\nRun `{} --help` for those that "
        "there are.\n",
        path, *word, nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest), path);
  }

  Status complete() {
    CommandWords words;
    collect(app_, "", words);
    std::fputs(bash_completion(words).c_str(), stdout);
    return ok();
  }
  static void collect(const CLI::App& app, const std::string& path, CommandWords& words) {
    auto& follow = words[path];
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
      follow.push_back(sub->get_name());
      collect(*sub, (path.empty() ? "" : path + " ") + sub->get_name(), words);
    }
    for (const CLI::Option* option : app.get_options())
      if (!option->get_lnames().empty()) follow.push_back("--" + option->get_lnames().front());
  }

  CLI::App app_;
  Action action_;
  ThreadExecutor executor_;
  ClusterChoice cluster_;
  GetOptions get_;
  DoctorChoice doctor_;
  PlanChoice plan_;
  WhatIfChoice what_if_;
  ExplainChoice explain_;
  DemoOptions demo_;
  std::vector<std::string> texts_;
  DataPlace place_;
  DeleteChoice delete_;
  PosixFileSystem files_;
  PruneOptions prune_;
  std::vector<std::string> other_words_;
  SimulateChoice simulate_;
  std::string file_, path_, resource_, name_, state_, crds_, shell_;
  std::string output_ = "table";
  std::string condition_ = "Complete";
  std::int64_t step_ = -1;
  int max_ = -1;
  int min_ = -1;
  std::optional<int> nodes_;
  GpuChoice gpus_;
  int slots_ = 1;
  std::optional<int> node_slots_;
  int grace_s_ = 10;
  int delete_timeout_s_ = 120;
  int wait_timeout_s_ = 600;
  int drain_timeout_s_ = 180;
  bool dry_run_ = false;
  bool follow_ = false;
  bool once_ = false;
  bool purge_ = false;
  bool machine_ = false;
};

}  // namespace
}  // namespace rubato::ctl

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // lines are followed through pipes, too
  rubato::set_log_sink([](rubato::LogLevel level, std::string_view, std::string_view text) {
    if (level >= rubato::LogLevel::kWarning)
      std::fprintf(stderr, "note: %.*s\n", static_cast<int>(text.size()), text.data());
  });
  const int code =
      rubato::run_printing("rubatoctl", [&] { return rubato::ctl::Program().run(argc, argv); });
  std::fflush(nullptr);
  std::_Exit(code);  // the threads of libraries need no farewell: what was asked is done and said
}
