#include "worker/script/launch.h"

#include <gtest/gtest.h>

namespace rubato::worker {
namespace {

using Words = std::vector<std::string>;

TEST(ScriptLaunch, TorchrunIsTakenFromTheCommand) {
  const std::vector<std::pair<Words, Words>> cases = {
      {{"python3", "train.py", "--lr", "1"}, {"python3", "train.py", "--lr", "1"}},
      {{"torchrun", "train.py"}, {"python3", "-u", "train.py"}},
      {{"/venv/bin/torchrun", "--nnodes=1:4", "--nproc_per_node", "8", "train.py", "--nnodes", "x"},
       {"/venv/bin/python3", "-u", "train.py", "--nnodes", "x"}},
      {{"torchrun", "--standalone", "-m", "pkg.train", "a"},
       {"python3", "-u", "-m", "pkg.train", "a"}},
      {{"torchrun", "-r", "3", "--no-python", "./run.sh"}, {"./run.sh"}},
      {{"torchrun", "--rdzv-backend=c10d", "--", "-odd.py"}, {"python3", "-u", "-odd.py"}},
      {{"python", "-m", "torch.distributed.run", "--max-restarts", "3", "t.py"},
       {"python", "-u", "t.py"}},
      {{"python", "-u", "-m", "torch.distributed.launch", "t.py"}, {"python", "-u", "t.py"}},
      {{"python", "-W", "ignore", "-X", "dev", "-m", "torch.distributed.run", "t.py"},
       {"python", "-u", "t.py"}},
      {{"python", "-uWignore", "--check-hash-based-pycs", "never", "-um", "torch.distributed.run",
        "t.py"},
       {"python", "-u", "t.py"}},
      {{"python", "-c", "-m", "torch.distributed.run", "t.py"},
       {"python", "-c", "-m", "torch.distributed.run", "t.py"}},
      {{"python", "-W", "-m", "t.py"}, {"python", "-W", "-m", "t.py"}},
      {{"python", "-um"}, {"python", "-um"}},
      {{"sh", "-c", "pip install torchrun-x && exec python t.py"},
       {"sh", "-c", "pip install torchrun-x && exec python t.py"}},
      {{"sh", "torchrun", "-c"}, {"sh", "torchrun", "-c"}},
      {{"uv", "run", "python", "t.py"}, {"uv", "run", "python", "t.py"}},
      {{"env", "A=/torchrun", "./t.py", "torchrun"}, {"env", "A=/torchrun", "./t.py", "torchrun"}},
      {{"python", "t.py", "torchrun"}, {"python", "t.py", "torchrun"}},
      {{"python", "-m", "pkg"}, {"python", "-m", "pkg"}}};
  for (const auto& [command, program] : cases) {
    const auto found = program_of(command);
    ASSERT_TRUE(found.ok()) << command[0];
    EXPECT_EQ(*found, program);
  }
  for (const Words& command :
       {Words{}, Words{""}, Words{"torchrun"}, Words{"torchrun", "--nnodes", "2"},
        Words{"torchrun", "--nnodes"}, Words{"torchrun", "--frobnicate", "t.py"},
        Words{"sh", "-c", "torchrun t.py"}, Words{"/bin/bash", "-elc", "cd /x;/y/torchrun t.py"},
        Words{"bash", "-e", "-c", "exec python3 -m torch.distributed.run t.py"},
        Words{"uv", "run", "torchrun", "t.py"}, Words{"tini", "--", "/v/bin/torchrun", "t.py"},
        Words{"env", "A=1", "python", "-m", "torch.distributed.run", "t.py"},
        Words{"/usr/bin/tini", "--", "sh", "-c", "exec torchrun t.py"}})
    EXPECT_FALSE(program_of(command).ok());
}

TEST(ScriptLaunch, WhatASpareCanRun) {
  const auto script = python_of({"/venv/bin/python3.11", "-u", "t.py", "-m"});
  ASSERT_TRUE(script.has_value());
  EXPECT_EQ(script->interpreter, (Words{"/venv/bin/python3.11", "-u"}));
  EXPECT_EQ(script->arguments, (Words{"t.py", "-m"}));
  EXPECT_FALSE(script->is_module);
  EXPECT_TRUE(python_of({"python", "-m", "pkg", "a"})->is_module);
  for (const Words& program :
       {Words{"python"}, Words{"python", "-m"}, Words{"python", "-c", "x"},
        Words{"python", "-X", "dev", "t.py"}, Words{"sh", "t.py"}, Words{"python", "-"}})
    EXPECT_FALSE(python_of(program).has_value());
}

wire::Form form_of(const std::vector<std::pair<std::string, std::uint32_t>>& members) {
  wire::Form form;
  form.set_generation(3);
  for (const auto& [pod, slot] : members) {
    wire::Member& member = *form.add_members();
    member.mutable_id()->set_pod_uid(pod);
    member.mutable_id()->set_slot(slot);
    member.mutable_id()->set_incarnation(1);
    member.mutable_address()->set_host("10.0.0." + std::to_string(form.members_size()));
    member.mutable_address()->set_port(7000);
  }
  return form;
}

TEST(ScriptLaunch, RanksAreAsTorchrunGivesThem) {
  const wire::Form form = form_of({{"a", 0}, {"a", 1}, {"b", 0}, {"b", 1}});
  const auto place = place_of(form, form.members(3).id());
  ASSERT_TRUE(place.ok());
  const auto variables = environment_of(
      *place, form, {.job_uid = "u", .restarts = 2, .restarts_most = 5, .error_file = "/tmp/e"});
  const std::map<std::string, std::string> some = {{"RANK", "3"},
                                                   {"WORLD_SIZE", "4"},
                                                   {"LOCAL_RANK", "1"},
                                                   {"LOCAL_WORLD_SIZE", "2"},
                                                   {"GROUP_RANK", "1"},
                                                   {"GROUP_WORLD_SIZE", "2"},
                                                   {"ROLE_RANK", "3"},
                                                   {"ROLE_WORLD_SIZE", "4"},
                                                   {"MASTER_ADDR", "10.0.0.1"},
                                                   {"MASTER_PORT", "7000"},
                                                   {"TORCHELASTIC_RESTART_COUNT", "2"},
                                                   {"TORCHELASTIC_MAX_RESTARTS", "5"},
                                                   {"TORCHELASTIC_ERROR_FILE", "/tmp/e"},
                                                   {"OMP_NUM_THREADS", "1"},
                                                   {"JAX_COORDINATOR_ADDRESS", "10.0.0.1:7000"},
                                                   {"JAX_PROCESS_ID", "3"}};
  for (const auto& [name, value] : some) EXPECT_EQ(variables.at(name), value) << name;
  wire::WorkerId stranger = form.members(3).id();
  stranger.set_incarnation(2);
  EXPECT_FALSE(place_of(form, stranger).ok());
}

TEST(ScriptLaunch, ErrorFilesOfRecordAreRead) {
  EXPECT_EQ(message_of_error_file(R"({"message":{"message":"ValueError: x","extraInfo":{}}})", 99),
            "ValueError: x");
  EXPECT_EQ(message_of_error_file(R"({"message":"plain"})", 3), "pla …");
  for (const char* text : {"", "no json", "{}", "[]", R"({"message":7})"})
    EXPECT_EQ(message_of_error_file(text, 99), "") << text;
}

}  // namespace
}  // namespace rubato::worker
