// What a script sees in a spare is what it sees in a fresh interpreter. Without torch: a module of
// that name stands in.
#include "tests/unit/worker/script/eventually.h"
#include "worker/script/program.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

namespace fs = std::filesystem;

constexpr MonoTime kNow{1h};

class Spare : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(std::system("python3 -c ''"), 0) << "scripts/setup check installs it";
    for (const char* part : {"modules/torch/nn", "modules/torch/utils", "work/apps/app"})
      fs::create_directories(folder / part);
    const fs::path torch = folder / "modules/torch";
    std::ofstream(torch / "__init__.py") << "import sys\nfirst_path = sys.path[0]\n";
    // It is imported, and no step of an optimizer is made, which would look for devices.
    std::ofstream(torch / "_dynamo.py")
        << "import os\nos.environ['LEFT'] = os.environ['RANK'] = 'behind'\n";
    for (const char* empty : {"distributed.py", "nn/__init__.py", "nn/parallel.py",
                              "utils/__init__.py", "utils/data.py"})
      std::ofstream(torch / empty).close();
    const fs::path apps = folder / "work/apps";
    std::ofstream(apps / "script.py")
        << "import os, sys, pickle, torch, __main__\n"
           "class Thing: pass\n"
           "pickle.loads(pickle.dumps(Thing()))\n"
           "names = {name: type(value).__name__ if name in ('__loader__', '__spec__') else value\n"
           "         for name, value in vars(__main__).items() if name.startswith('__')}\n"
           "names.pop('__builtins__')\n"
           "open(os.environ['SAID'], 'a').write(repr((sys.argv, sys.path, names,\n"
           "    getattr(sys, 'orig_argv', None),\n"
           "    torch.first_path, __main__.Thing is Thing, Thing.__module__,\n"
           "    getattr(__loader__, 'path', ''), (lambda: 0).__code__.co_filename,\n"
           "    sorted(os.environ.items()),\n"
           "    sorted(n for n in globals() if not n.startswith('__')))) + '\\n')\n"
           "os.chdir('/')\n"
           "sys.exit(4)\n";
    fs::copy(apps / "script.py", apps / "app/__main__.py");
    // What lies in the working directory is no script's, but of one that lies there, too.
    std::ofstream(folder / "work/socket.py") << "raise SystemExit('not this one')\n";
    fs::current_path(folder / "work");
    const std::string make =
        "python3 -c \"import zipapp, py_compile; zipapp.create_archive('apps/app', "
        "'apps/app.pyz'); "
        "py_compile.compile('apps/script.py', cfile='apps/script.pyc')\"";
    ASSERT_EQ(std::system(make.c_str()), 0);
    set("PYTHONPATH", folder / "modules");
    set("SAID", folder / "said");
    variables["RANK"] = "3";
  }
  void TearDown() override {
    fs::current_path(before);
    for (const auto& [name, ignored] : variables) ::unsetenv(name.c_str());
    fs::remove_all(folder);
  }
  void set(const std::string& name, const std::string& value) {
    variables[name] = value;
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  static int exit_code_of(Program& program) {
    std::optional<ProgramEnd> end;
    EXPECT_TRUE(eventually([&] { return (end = program.take_end()).has_value(); }));
    return end.value_or(ProgramEnd{}).exit_code;
  }
  static bool gets_ready(PosixProgram& program, const std::vector<std::string>& command,
                         const std::map<std::string, std::string>& variables) {
    return eventually([&] {
      program.prepare(kNow, command, variables);
      return program.has_spare();
    });
  }
  // Both ways it says the same of itself.
  void expect_same(const std::vector<std::string>& command) {
    SCOPED_TRACE(testing::PrintToString(command));
    fs::remove(folder / "said");
    PosixProgram program;
    ASSERT_TRUE(program.start(command, variables).ok());
    EXPECT_EQ(exit_code_of(program), 4);
    ASSERT_TRUE(gets_ready(program, command, variables));
    ASSERT_TRUE(program.start(command, variables).ok());
    EXPECT_FALSE(program.has_spare());
    EXPECT_EQ(exit_code_of(program), 4);
    std::ifstream in(folder / "said");
    std::string fresh, spare;
    std::getline(in, fresh);
    std::getline(in, spare);
    EXPECT_FALSE(fresh.empty());
    EXPECT_EQ(spare, fresh);
  }

  const fs::path before = fs::current_path();
  const fs::path folder = fs::path(testing::TempDir()) / ("spare-" + std::to_string(::getpid()));
  std::map<std::string, std::string> variables;
};

TEST_F(Spare, AScriptSeesWhatAFreshInterpreterShows) {
  expect_same({"python3", "-u", folder / "work/apps/script.py", "a", "b c"});
  expect_same({"python3", "apps/script.py", "-m"});
  expect_same({"python3", "./apps/../apps/script.py"});
}

TEST_F(Spare, SoDoModulesFoldersArchivesAndCompiledScripts) {
  expect_same({"python3", "apps/app", "a"});
  expect_same({"python3", "apps/app.pyz"});
  expect_same({"python3", "apps/script.pyc"});
  fs::remove("socket.py");
  expect_same({"python3", "-m", "apps.script", "m"});
}

TEST_F(Spare, WithASafePathNoFolderOfTheScriptIsInFront) {
  set("PYTHONSAFEPATH", "1");
  expect_same({"python3", "apps/script.py"});
  expect_same({"python3", "apps/app"});
}

TEST_F(Spare, OneThatIsNotReadyInTimeIsEndedAndIsTheLast) {
  const std::vector<std::string> command = {"python3", "apps/script.py"};
  // It hangs, as does what it has started.
  const fs::path begun = folder / "begun";
  std::ofstream(folder / "modules/torch/_dynamo.py")
      << "import os, signal, subprocess\n"
         "child = subprocess.Popen(['sleep', '1000'])\n"
         "open('"
      << begun.string() << "', 'w').write(f'{os.getpid()} {child.pid} ')\nsignal.pause()\n";
  PosixProgram program;
  program.prepare(kNow, command, variables);
  int pid = 0, child = 0;
  ASSERT_TRUE(eventually([&] {
    std::ifstream in(begun);
    return static_cast<bool>(in >> pid >> child) && in.get() == ' ';
  }));
  program.prepare(kNow + kSpareReadyMost - 1ms, command, variables);
  EXPECT_EQ(::kill(pid, 0), 0);
  program.prepare(kNow + kSpareReadyMost, command, variables);
  EXPECT_NE(::kill(pid, 0), 0);
  EXPECT_TRUE(eventually([&] { return ::waitpid(child, nullptr, WNOHANG) == child; }))
      << "it comes to us";
  program.prepare(kNow + 2 * kSpareReadyMost, command, variables);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "there is no other one";
  EXPECT_FALSE(program.has_spare());
}

TEST_F(Spare, OneThatNoLongerFitsIsLeft) {
  const std::vector<std::string> command = {"python3", "apps/script.py"};
  PosixProgram program;
  ASSERT_TRUE(gets_ready(program, command, variables));
  variables["OMP_NUM_THREADS"] = "1";
  ASSERT_TRUE(program.start(command, variables).ok());
  EXPECT_FALSE(program.has_spare());
  EXPECT_EQ(exit_code_of(program), 4);
}

}  // namespace
}  // namespace rubato::worker
