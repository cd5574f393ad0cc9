// How far a program is: by its file, or by what it prints.
#include "worker/script/progress.h"

#include "tests/unit/worker/script/eventually.h"
#include "worker/script/program.h"

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

using std::string_view_literals::operator""sv;

TEST(ScriptProgress, TheLastWholeLineTellsHowFarAProgramIs) {
  const auto told =
      progress_of_file("{\"step\": 1}\n{\"step\": 7, \"loss\": 2.5, \"tokens\": 9}\n{\"st");
  ASSERT_TRUE(told.ok());
  EXPECT_EQ(*told, (ToldProgress{7, 9, 2.5}));
  const std::vector<std::pair<const char*, ToldProgress>> cases = {
      {"{\"step\": -3}\n", {0, 0, 0}},
      {"{\"step\": 7.0, \"tokens\": 1e6}\n", {7, 1'000'000, 0}},
      {"{\"step\": 2, \"loss\": NaN, \"tokens\": 5}\n", {2, 5, 0}},
      {"{\"step\": 2, \"a\": [Infinity, -Infinity], \"b\": \"\\\"NaN\"}\n", {2, 0, 0}},
      {"{\"step\": 1e300}\n", {1ULL << 62, 0, 0}}};
  for (const auto& [text, progress] : cases) {
    const auto read = progress_of_file(text);
    ASSERT_TRUE(read.ok()) << text;
    EXPECT_EQ(*read, progress) << text;
  }
  for (const char* text : {"", "{\"step\": 1}", "x"}) {
    const auto read = progress_of_file(text);
    EXPECT_TRUE(read.ok() && !read->has_value()) << "no whole line: " << text;
  }
  for (const char* text : {"\n", "7\n", "{\"loss\": 1}\n", "step 7\n", "\n\n",
                           "{\"step\": \"7\"}\n", "{\"step\": NaN}\n"})
    EXPECT_FALSE(progress_of_file(text).ok()) << text;
}

TEST(ScriptProgress, APatternFindsItInALine) {
  const auto all = ProgressPattern::parse(
      R"(step[ =]+(?<step>\d+)(?:/\d+)?.*\(?loss[ =](?P<loss>[-+.\deE]+|nan)\)?(?:.* (?<tokens>\d+) tokens)?)");
  ASSERT_TRUE(all.ok()) << all.error().what();
  EXPECT_EQ(all->find("  step 12/900 | loss 2.5e-1"), (ToldProgress{12, 0, 0.25}));
  EXPECT_EQ(all->find("step=7 (loss 3) and 4096 tokens"), (ToldProgress{7, 4096, 3}));
  EXPECT_EQ(all->find("step 8 loss nan"), (ToldProgress{8, 0, 0}));
  EXPECT_FALSE(all->find("epoch 3 loss 2").has_value());
  EXPECT_FALSE(all->find("").has_value());
  EXPECT_FALSE(all->find(std::string(2 * kProgressLineMost, ' ') + "step 1 loss 1").has_value());
  // Groups without a name, classes and escapes do not shift the others.
  const auto odd = ProgressPattern::parse(R"(([(])(a|b)\((?<loss>\d) (?<step>\d))");
  ASSERT_TRUE(odd.ok());
  EXPECT_EQ(odd->find("(b(5 6"), (ToldProgress{6, 0, 5}));
}

// A step of a matcher that goes back is taken 2^n or n^3 times here.
TEST(ScriptProgress, NoPatternTakesLong) {
  const SystemClock clock;
  for (const char* text :
       {R"(step (?<step>\d+): (\w+\s?)+ loss=(?<loss>[\d.]+))", R"(.*step.*(?<step>\d+).*)",
        R"(step (?<step>\d+)(.|\n)*loss=(?<loss>.*))"}) {
    const auto pattern = ProgressPattern::parse(text);
    ASSERT_TRUE(pattern.ok()) << pattern.error().what();
    std::string line = "step 7: ";
    while (line.size() < kProgressLineMost) line += "abcdefgh ";
    const MonoTime start = clock.now();
    (void)pattern->find(line);
    (void)pattern->find(std::string(kProgressLineMost, 'x'));
    EXPECT_LT(clock.now() - start, 15s) << text;
  }
}

TEST(ScriptProgress, WhatIsNoPatternIsSaid) {
  const auto why = [](const std::string& text) {
    const auto parsed = ProgressPattern::parse(text);
    return parsed.ok() ? "" : parsed.error().what();
  };
  EXPECT_NE(why("step (\\d+)").find("no group named step"), std::string::npos);
  EXPECT_NE(why("(?<step>\\d+").find("no regular expression"), std::string::npos);
  EXPECT_NE(why("(?<step").find("step"), std::string::npos);
  EXPECT_NE(why("(?<=a)(?<step>\\d+)").find("neither ahead nor behind"), std::string::npos);
  EXPECT_NE(why(std::string(kProgressPatternMost + 1, 'a')).find("are allowed"), std::string::npos);
}

class Printed : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::pipe(ends.data()), 0);
    auto opened = ProgressLog::open(std::move(ProgressPattern::parse("step (?<step>\\d+)")).value(),
                                    file, ends[1]);
    ASSERT_TRUE(opened.ok());
    log = std::move(opened).value();
  }
  void TearDown() override {
    log.reset();
    for (const int fd : ends) ::close(fd);
    std::filesystem::remove(file);
  }
  // All that came out, once it ends with `last`.
  std::string out_until(const std::string& last) {
    std::string text;
    std::array<char, 256> bytes{};
    while (!text.ends_with(last)) {
      const auto got = ::read(ends[0], bytes.data(), bytes.size());
      if (got <= 0) break;
      text.append(bytes.data(), static_cast<std::size_t>(got));
    }
    return text;
  }
  std::uint64_t step() const {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    const auto told = progress_of_file(text.str());
    return told.ok() && *told ? (*told)->step : 0;
  }
  bool comes_to(std::uint64_t number) const {
    return eventually([&] { return step() == number; });
  }

  std::array<int, 2> ends{-1, -1};
  std::string file = testing::TempDir() + "printed-" + std::to_string(::getpid());
  std::unique_ptr<ProgressLog> log;
};

TEST_F(Printed, AllGoesOnAndTheNewestStepIsKept) {
  PosixProgram program(log.get());
  const std::string words =
      R"(printf 'step 1\nno\000 step 2\rstep 3'; echo err >&2; printf 'step 4')";
  ASSERT_TRUE(program.start({"sh", "-c", words + "; exec sleep 1000"}, {}).ok());
  EXPECT_EQ(out_until("step 4"), "step 1\nno\0 step 2\rstep 3err\nstep 4"sv);
  EXPECT_TRUE(comes_to(3)) << "the line of step 4 has not ended";
}

TEST_F(Printed, AnotherProgramBeginsAnew) {
  PosixProgram program(log.get());
  ASSERT_EQ(::fcntl(log->input(), F_SETFL, O_NONBLOCK), 0) << "as one before it left it";
  ASSERT_TRUE(program.start({"sh", "-c", "echo step 8; echo step 9; printf 'step 7'"}, {}).ok());
  EXPECT_EQ(::fcntl(log->input(), F_GETFL) & O_NONBLOCK, 0);
  ASSERT_TRUE(eventually([&] { return program.take_end().has_value(); }));
  EXPECT_EQ(step(), 9u) << "at its end all is read";
  ASSERT_TRUE(program.start({"sh", "-c", "echo; echo step 5; exec sleep 1000"}, {}).ok());
  EXPECT_TRUE(comes_to(5)) << "half a line of the last one is not made whole";
  EXPECT_NE(out_until("step 5\n").find("step 9\nstep 7\nstep 5"), std::string::npos);
}

// Files of this process take no bytes, as on a full disk.
class NoRoomInFiles {
 public:
  NoRoomInFiles() {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit none{0, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &none);
  }
  ~NoRoomInFiles() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, signal_before_);
  }
  NoRoomInFiles(const NoRoomInFiles&) = delete;

 private:
  rlimit before_{};
  const sighandler_t signal_before_ = ::signal(SIGXFSZ, SIG_IGN);
};

TEST_F(Printed, AFullDiskKeepsWhatIsKnownAndTheNewestComesLater) {
  const auto print = [&](const std::string& line) {
    ASSERT_EQ(::write(log->input(), line.data(), line.size()), std::ssize(line));
  };
  print("step 8\n");
  ASSERT_TRUE(comes_to(8));
  {
    const NoRoomInFiles full;
    print("step 9\n");
    EXPECT_EQ(out_until("step 9\n"), "step 8\nstep 9\n");
    log->end();
    EXPECT_EQ(step(), 8u);
  }
  EXPECT_TRUE(comes_to(9));
}

}  // namespace
}  // namespace rubato::worker
