#include "worker/script/process_table.h"

#include <algorithm>
#include <csignal>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

TEST(ProcessTable, HasThisProcess) {
  const auto all = process_table();
  const auto self = std::ranges::find(all, ::getpid(), &ProcessEntry::pid);
  ASSERT_NE(self, all.end());
  EXPECT_EQ(self->parent, ::getppid());
  EXPECT_EQ(self->group, ::getpgrp());
  EXPECT_FALSE(self->is_zombie);
}

TEST(ProcessTable, OneThatWasReapedSinceItsFileWasOpenedIsGone) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  const int file = ::open(("/proc/" + std::to_string(child) + "/stat").c_str(), O_RDONLY);
  ASSERT_GE(file, 0);
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(entry_of(file).has_value());
  ::close(file);
}

}  // namespace
}  // namespace rubato::worker
