#include "worker/script/launch.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

using Words = std::vector<std::string>;

// Whatever this machine has is not found.
class EmptyPath {
 public:
  EmptyPath() { ::setenv("PATH", "/no/such/folder", 1); }
  ~EmptyPath() { ::setenv("PATH", before_.c_str(), 1); }
  EmptyPath(const EmptyPath&) = delete;

 private:
  const std::string before_ = std::getenv("PATH");
};

TEST(ScriptLaunch, TorchrunIsTakenFromTheCommand) {
  const EmptyPath path;
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
      {{"python", "-u", "-m", "torch.distributed.launch", "--use_env", "t.py", "a"},
       {"python", "-u", "t.py", "a"}},
      {{"python", "-m", "torch.distributed.launch", "--nproc_per_node=2", "t.py", "a"},
       {"python", "-u", "t.py", "--local-rank=3", "a"}},
      {{"torchrun", "t.py", "--dir=/x/${local_rank}/${local_rank}"},
       {"python3", "-u", "t.py", "--dir=/x/3/3"}},
      {{"./t.py", "${local_rank}"}, {"./t.py", "${local_rank}"}},
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
      {{"python", "-u", "/venv/bin/torchrun", "--standalone", "t.py"}, {"python", "-u", "t.py"}},
      {{"torchrun", "--shutdown-timeout", "9", "--duplicate-stdout-filters=x",
        "--log_line_prefix_template", "r", "--duplicate_stderr_filters", "y", "t.py"},
       {"python3", "-u", "t.py"}},
      {{"uv", "run", "python", "t.py"}, {"uv", "run", "python", "t.py"}},
      {{"env", "A=/torchrun", "./t.py", "torchrun"}, {"env", "A=/torchrun", "./t.py", "torchrun"}},
      {{"python", "t.py", "torchrun"}, {"python", "t.py", "torchrun"}},
      {{"python", "-m", "pkg"}, {"python", "-m", "pkg"}}};
  for (const auto& [command, program] : cases) {
    const auto found = program_of(command);
    ASSERT_TRUE(found.ok()) << command[0];
    EXPECT_EQ(words_of(*found, 3), program);
  }
  ::setenv("PYTHON_EXEC", "/other/python", 1);
  EXPECT_EQ(program_of({"torchrun", "t.py"})->words, (Words{"/other/python", "-u", "t.py"}));
  EXPECT_EQ(program_of({"python", "t.py"})->words, (Words{"python", "t.py"}));
  ::unsetenv("PYTHON_EXEC");
  for (const Words& command :
       {Words{}, Words{""}, Words{"torchrun"}, Words{"torchrun", "--nnodes", "2"},
        Words{"torchrun", "--nnodes"}, Words{"torchrun", "--frobnicate", "t.py"},
        Words{"torchrun", "--virtual-local-rank", "t.py"}, Words{"torchrun", "--use-env", "t.py"}})
    EXPECT_FALSE(program_of(command).ok());
}

TEST(ScriptLaunch, OptionsOfTorchrunThatChangeNothingAreNamed) {
  const EmptyPath path;
  const auto found = program_of({"torchrun", "--standalone", "--role=trainer", "-t", "3", "-r3",
                                 "--log_dir=/a=b", "--nnodes", "2", "t.py", "--tee"});
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->role, "trainer");
  EXPECT_EQ(found->left_out, (Words{"--standalone", "-t", "-r3", "--log_dir", "--nnodes"}));
  EXPECT_EQ(program_of({"torchrun", "--role", "reader", "t.py"})->role, "reader");
  EXPECT_EQ(program_of({"torchrun", "t.py"})->role, "default");
  EXPECT_TRUE(program_of({"python3", "t.py", "--tee", "3"})->left_out.empty());
}

TEST(ScriptLaunch, LaunchersBehindSomethingElseAreRefused) {
  const std::vector<std::pair<std::string, Words>> refused = {
      {"torchrun", {"sh", "-c", "torchrun t.py"}},
      {"torchrun", {"/bin/bash", "-elc", "cd /x;/y/torchrun t.py"}},
      {"torchrun", {"bash", "-cx", "A=1 torchrun --standalone t.py"}},
      {"torchrun", {"bash", "-o", "pipefail", "-c", "exec torchrun t.py 2>&1 | tee log"}},
      {"torchrun", {"/usr/bin/tini", "--", "sh", "-c", "python prepare.py && torchrun t.py"}},
      {"torchrun", {"timeout", "100", "torchrun", "t.py"}},
      {"torchrun", {"nohup", "/v/bin/torchrun", "t.py"}},
      {"torchrun", {"nsys", "profile", "-o", "x", "torchrun", "t.py"}},
      {"torchrun", {"numactl", "-m", "0", "torchrun", "t.py"}},
      {"torchrun", {"env", "-S", "A=1 torchrun t.py"}},
      {"torchrun", {"uv", "run", "torchrun", "t.py"}},
      {"torch.distributed.run", {"bash", "-c", "python3 -mtorch.distributed.run t.py"}},
      {"torch.distributed.run", {"env", "A=1", "python", "-m", "torch.distributed.run", "t.py"}},
      {"torch.distributed.launch", {"uv", "run", "-m", "torch.distributed.launch", "t.py"}},
      {"torchrun", {"env", "python3", "-u", "/v/bin/torchrun", "t.py"}},
      {"accelerate launch", {"accelerate", "launch", "t.py"}},
      {"accelerate.commands.launch", {"python", "-m", "accelerate.commands.launch", "t.py"}},
      {"deepspeed", {"deepspeed", "--num_gpus", "2", "t.py"}},
      {"deepspeed", {"bash", "-c", "deepspeed --num_gpus 8 \\\n  t.py"}},
      {"composer", {"composer", "-n", "8", "t.py"}},
      {"mpirun", {"mpirun", "-np", "4", "python", "t.py"}},
      {"horovodrun", {"horovodrun", "-np", "4", "python", "t.py"}},
      {"torchrun", {"bash", "-euo", "pipefail", "-c", "if a; then\n  exec torchrun t.py; fi"}},
      {"torchrun", {"sh", "-c", "# start\n torchrun --nproc-per-node=$(nvidia-smi -L|wc -l) t.py"}},
      {"deepspeed", {"sh", "-c", "deepspeed --num_gpus $(echo $N) t.py"}},
      {"torchrun", {"sh", "-c", "cd x; env A='b c' \"torchrun\" t.py"}},
      {"torchrun", {"sh", "-c", "bash -c 'exec torchrun t.py'"}},
      {"torchrun", {"env", "-u", "A", "--", "B=1", "nice", "-n5", "torchrun", "t.py"}},
      {"torchrun", {"timeout", "--signal=INT", "-k", "5", "100", "torchrun", "t.py"}},
      {"torchrun", {"sh", "-c", "cd \"$(dirname \"$0\")\" && torchrun t.py"}},
      {"torchrun", {"sh", "-c", "A=${A:-$((20000 + 1))}; torchrun --master-port=\"${A}\" t.py"}},
      {"deepspeed", {"sh", "-c", "deepspeed --num_gpus \"$(nvidia-smi -L | wc -l)\" t.py"}},
      {"torchrun", {"sh", "-c", "echo \"$(torchrun t.py)\""}},
      {"torchrun", {"uv", "run", "--with", "deepspeed", "torchrun", "t.py"}}};
  for (const auto& [launcher, command] : refused) {
    const auto found = program_of(command);
    ASSERT_FALSE(found.ok()) << testing::PrintToString(command);
    EXPECT_NE(found.error().what().find("starts " + launcher + ","), std::string::npos)
        << found.error().what();
  }
  const std::vector<Words> taken = {
      {"sh", "-c", "pip install deepspeed accelerate && cd composer && exec python t.py"},
      {"bash", "-c", "python t.py --launcher torchrun"},
      {"conda", "run", "-n", "deepspeed", "python", "t.py"},
      {"accelerate", "config", "update"},
      {"uv", "run", "-m", "pkg.train", "torchrun"},
      {"env", "HINT=use torchrun for this", "./t.py", "torchrun"},
      {"nohup", "python", "-m", "pkg.train", "mpirun"},
      {"./train", "--launcher=torchrun"},
      {"uv", "run", "--with", "deepspeed", "train.py"},
      {"uv", "run", "--unknown", "mpirun", "x"},
      {"bash", "run.sh", "--launcher", "mpirun"},
      {"./start", "--c", "mpirun"},
      {"sh", "-c", "if which mpirun; then module load x; fi; python train.py"},
      {"sh", "-c", "python train.py; rm -rf mpirun"},
      {"sh", "-c", "torchrun --version; echo \"x; torchrun t.py\"; python t.py"},
      {"sh", "-c", "python t.py  # torchrun t.py"},
      {"sh", "-c", "case $L in a) ls;; mpirun|mpiexec) ls x;; esac; python t.py"},
      {"sh", "-c", "A=`mpirun --version`; python t.py 2>&1"},
      {"bash", "-c", "A=(torchrun t.py); python t.py"},
      {"bash", "-c", "[[ $L =~ ^(torchrun x|mpirun x)$ || mpirun == $L ]]; python t.py"},
      {"sh", "-c", "cat > hosts <<END\nmpirun x\nEND\npython t.py"},
      {"sh", "-c", "RUNNING=\"$(pgrep -f \"python torchrun x\")\"; python t.py"},
      {"sh", "-c", "LOG=\"$(echo \"start torchrun now\")\"; python t.py"},
      {"sh", "-c", "P=\"$(ls | awk '{print \"a; torchrun x\"}')\"; python t.py"},
      {"sh", "-c", "MODE=${MODE:-a torchrun x}; python t.py"},
      {"sh", "-c", "echo \"$(echo \"it's\")\"\necho 'usage:\n torchrun t.py'; python t.py"},
      {"bash", "-c", "echo $'it\\'s; torchrun x'; python t.py"},
      {"timeout", "100"},
      {"python", "-c", "print('torchrun t.py')"}};
  for (const Words& command : taken) {
    const auto found = program_of(command);
    ASSERT_TRUE(found.ok()) << found.error().what();
    EXPECT_EQ(words_of(*found, 0), command);
  }
}

TEST(ScriptLaunch, TorchrunsInterpreterIsThatOfItsFirstLine) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / ("first-" + std::to_string(::getpid()));
  fs::create_directories(folder / "venv");
  fs::create_directories(folder / "bin");
  const std::string own = folder / "venv" / "python3.11";
  const fs::path file = folder / "venv" / "torchrun";
  const std::string link = folder / "bin" / "torchrun";
  std::ofstream{own};
  fs::create_symlink(file, link);
  const auto interpreter = [&](const std::string& text) {
    std::ofstream(file) << text;
    const auto found = program_of({link, "t.py"});
    return found.ok() ? found->words.at(0) : found.error().what();
  };
  EXPECT_EQ(interpreter("#!" + own + " -E\nimport re\n"), own);
  const std::string quotes(3, '\'');
  EXPECT_EQ(interpreter("#!/bin/sh\n" + quotes + "exec' \"" + own + "\" \"$0\"\n"), own);
  EXPECT_EQ(interpreter("#!/usr/bin/env python3\n"), "python3");
  EXPECT_NE(interpreter("#!/no/python3\n").find("python -m torch.distributed.run"),
            std::string::npos);
  std::ofstream{folder / "venv" / "python3"};
  EXPECT_EQ(interpreter("#!/bin/sh\n"), fs::canonical(folder / "venv" / "python3").string());
  fs::remove_all(folder);
}

TEST(ScriptLaunch, WhatASpareCanRun) {
  const auto script = python_of({"/venv/bin/python3.11", "-u", "t.py", "-m"});
  ASSERT_TRUE(script.has_value());
  EXPECT_EQ(script->interpreter, (Words{"/venv/bin/python3.11", "-u"}));
  EXPECT_EQ(script->arguments, (Words{"t.py", "-m"}));
  EXPECT_FALSE(script->is_module);
  EXPECT_TRUE(python_of({"python", "-m", "pkg", "a"})->is_module);
  for (const char* name : {"python", "python3", "/usr/bin/python3.13t", "python3.12d", "python2.7"})
    EXPECT_TRUE(python_of({name, "t.py"}).has_value()) << name;
  for (const char* name : {"/app/python-entry.sh", "python_launcher", "pythonw3", "python3-wrapper",
                           "python.sh", "python3.py"})
    EXPECT_FALSE(python_of({name, "t.py"}).has_value()) << name;
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
  const auto variables = environment_of(*place, form,
                                        {.job_uid = "u",
                                         .role = "trainer",
                                         .restarts = 2,
                                         .restarts_most = 5,
                                         .error_file = "/tmp/e"});
  const std::map<std::string, std::string> some = {{"RANK", "3"},
                                                   {"WORLD_SIZE", "4"},
                                                   {"LOCAL_RANK", "1"},
                                                   {"LOCAL_WORLD_SIZE", "2"},
                                                   {"GROUP_RANK", "1"},
                                                   {"GROUP_WORLD_SIZE", "2"},
                                                   {"ROLE_RANK", "3"},
                                                   {"ROLE_WORLD_SIZE", "4"},
                                                   {"ROLE_NAME", "trainer"},
                                                   {"MASTER_ADDR", "10.0.0.1"},
                                                   {"MASTER_PORT", "7000"},
                                                   {"TORCHELASTIC_RESTART_COUNT", "2"},
                                                   {"TORCHELASTIC_MAX_RESTARTS", "5"},
                                                   {"TORCHELASTIC_ERROR_FILE", "/tmp/e"},
                                                   {"OMP_NUM_THREADS", "1"},
                                                   {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                                   {"JAX_COORDINATOR_ADDRESS", "10.0.0.1:7000"},
                                                   {"JAX_PROCESS_ID", "3"}};
  for (const auto& [name, value] : some) EXPECT_EQ(variables.at(name), value) << name;
  wire::Form v6 = form;
  v6.mutable_members(0)->mutable_address()->set_host("fd00::1");
  EXPECT_EQ(environment_of(*place, v6, {}).at("MASTER_ADDR"), "fd00::1");
  EXPECT_EQ(environment_of(*place, v6, {}).at("JAX_COORDINATOR_ADDRESS"), "[fd00::1]:7000");
  const auto given =
      environment_of(*place, form, {.sets_threads = false, .sets_nccl_errors = false});
  for (const char* name : {"OMP_NUM_THREADS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"})
    EXPECT_FALSE(given.contains(name)) << name;
  wire::WorkerId stranger = form.members(3).id();
  stranger.set_incarnation(2);
  EXPECT_FALSE(place_of(form, stranger).ok());
}

TEST(ScriptLaunch, ErrorFilesOfRecordAreRead) {
  EXPECT_EQ(message_of_error_file(R"({"message":{"message":"ValueError: x","extraInfo":{}}})", 99),
            "ValueError: x");
  EXPECT_EQ(message_of_error_file(R"({"message":"plain"})", 3), "pla …");
  // However long it is, its beginning counts; halves of pairs and control characters are no text.
  const std::string start = R"({"message": {"message": "Error: )";
  EXPECT_EQ(message_of_error_file(start + std::string(9000, 'x'), 10), "Error: xxx …");
  EXPECT_EQ(
      message_of_error_file(start + R"(\udcff \u001b[31m\nb\u00e4d \ud83d\ude00 \"x\", \ud8)", 99),
      "Error: ?  [31m bäd 😀 \"x\", ");
  for (const char* text : {"", "no json", "{}", "[]", R"({"message":7})"})
    EXPECT_EQ(message_of_error_file(text, 99), "") << text;
}

}  // namespace
}  // namespace rubato::worker
