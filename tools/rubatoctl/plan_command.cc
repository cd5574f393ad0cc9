#include "tools/rubatoctl/plan_command.h"

#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace rubato::ctl {

const char* const kPlanAbout =
    "What the scheduler does with a snapshot: nodes, jobs, queues as JSON (docs/snapshot.md)\n\n"
    "No cluster is asked; the library is the operator's own, so a recorded round is decided again "
    "as it was.\n\n"
    "  rubatoctl plan examples/snapshot.json               the plan, as JSON\n"
    "  rubatoctl plan examples/snapshot.json -o table      for people: what is done, who waits, "
    "and why\n"
    "  rubatoctl plan < round-000000042.json               one that rubato-operator "
    "--record-snapshots wrote\n"
    "  examples/drive_scheduler.py                         another simulator drives it, by "
    "--stream:\n"
    "a snapshot a line is read, a plan a line is written; a bad line is answered with "
    "{\"error\": \"…\"}.\n\n"
    "A bad snapshot says which field is wrong: jobs[3].gpus.min: -1, expected a whole number from "
    "1 to 1048576";

void add_plan_command(CLI::App& command, PlanChoice& choice) {
  command.add_option("file", choice.file, "the snapshot; -: what comes in")->capture_default_str();
  command.add_option("-o,--output", choice.output, "json or table")
      ->check(CLI::IsMember({"json", "table"}))
      ->capture_default_str();
  command.add_flag("--stream", choice.stream, "a snapshot a line in, a plan a line out");
}

Status run_plan(const PlanChoice& choice) {
  std::ios::sync_with_stdio(false);
  return plan(choice, std::cin, std::cout);
}

const char* const kWhatIfAbout =
    "What the plan of a snapshot would be if something were different: each job as it is and as it "
    "would be\n\n"
    "No cluster is asked. Both plans are made as by `rubatoctl plan`; * marks the jobs that "
    "differ.\n\n"
    "  rubatoctl what-if examples/snapshot.json --policy fifo\n"
    "  rubatoctl what-if examples/snapshot.json --without-node n1            its pods are lost\n"
    "  rubatoctl what-if examples/snapshot.json --add-nodes 2,like=n1        empty ones, ready\n"
    "  rubatoctl what-if examples/snapshot.json --set job=job-2,min=8,max=8  also priority=NUMBER\n"
    "  rubatoctl what-if examples/snapshot.json --remove-job team-a/llm      it has ended\n\n"
    "Several may be given together, and all but --policy several times. The latest snapshots of an "
    "operator are\nin the folder of its --record-snapshots.";

void add_what_if_command(CLI::App& command, WhatIfChoice& choice) {
  Changes& changes = choice.changes;
  command.add_option("file", choice.file, "the snapshot; -: what comes in")->capture_default_str();
  command.add_option("--policy", changes.policy,
                     "another policy, maybe with parameters: gavel:objective=1");
  const auto add = [&](const char* name, std::vector<std::string>& to, const char* about) {
    command.add_option(name, to, about)->allow_extra_args(false);
  };
  add("--without-node", changes.without_nodes, "a node that is gone, with the pods on it");
  add("--add-nodes", changes.add_nodes,
      "COUNT,like=NODE: so many more nodes, as that one is empty");
  add("--remove-job", changes.remove_jobs, "a job that has ended");
  add("--set", changes.set, "job=NAME and one or more of min=GPUS, max=GPUS, priority=NUMBER");
  command.add_option("-o,--output", choice.output, "table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
}

const char* const kExplainAbout =
    "Why a job has what it has: what it holds, what it waits for, who comes before it, what would "
    "help\n\n"
    "  rubatoctl explain gpt-kjv                            what its status in the cluster says\n"
    "  rubatoctl explain job-2 -f examples/snapshot.json    of a snapshot (docs/snapshot.md), "
    "whose plan is made again:\n"
    "also the smallest change by which it could be placed, the jobs without which it would be, "
    "and when it is expected to start.";

void add_explain_command(CLI::App& command, ExplainChoice& choice) {
  command.add_option("job", choice.job, "its name; of a snapshot, or its id")->required();
  command.add_option("-f,--filename", choice.file, "the snapshot, or -; no cluster is asked");
}

}  // namespace rubato::ctl
