#include "common/files.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace rubato {
namespace {

TEST(CheckWritten, SparesWhatIsReadAndWhatIsNoFile) {
  std::string folder = ::testing::TempDir() + "/written-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string text = folder + "/text";
  std::ofstream(text) << "words";
  std::ofstream(folder + "/new.tmp") << "words";
  std::filesystem::create_hard_link(text, folder + "/same");
  std::filesystem::create_symlink(text, folder + "/link");
  const auto check = [&](const std::string& path, std::vector<std::string> read) {
    return check_written(path, read).ok();
  };
  EXPECT_TRUE(check(folder + "/other", {text, folder + "/missing"}));
  EXPECT_TRUE(check(folder + "/same", {folder + "/missing"}));
  for (const char* name : {"/text", "/same", "/link"})
    EXPECT_FALSE(check(folder + name, {text})) << name;
  EXPECT_FALSE(check(folder + "/new", {folder + "/new.tmp"}));
  EXPECT_FALSE(check("/dev/null", {}));
  EXPECT_FALSE(check(folder, {}));
  std::filesystem::remove_all(folder);
}

TEST(ReadInput, TakesFilesAndPipesButNoFolders) {
  std::string folder = ::testing::TempDir() + "/input-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/text") << std::string(100000, 'w');
  EXPECT_EQ(read_input(folder + "/text", 100000).value_or(""), std::string(100000, 'w'));
  EXPECT_EQ(read_input(folder + "/text", 99999).error().code(), Code::kInvalid);
  EXPECT_EQ(read_input(folder + "/none", 1).error().code(), Code::kNotFound);
  const auto read = read_input(folder, 1);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().what(), "reading " + folder + ": Is a directory");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "words", 5), 5);
  ::close(ends[1]);
  EXPECT_EQ(read_input("/dev/fd/" + std::to_string(ends[0]), 5).value_or(""), "words");
  ::close(ends[0]);
  std::filesystem::remove_all(folder);
}

// What stays wrong until somebody changes it has codes of its own; all else may pass.
TEST(PosixFiles, WhatStaysWrongIsNotUnavailable) {
  std::string folder = ::testing::TempDir() + "/codes-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  PosixFileSystem files;
  std::filesystem::create_symlink(folder + "/circle", folder + "/circle");
  std::filesystem::create_directory(folder + "/closed");
  std::ofstream(folder + "/closed/text") << "words";
  const auto code = [&](const std::string& name) {
    const auto opened = files.open(folder + "/" + name, OpenMode::kRead);
    return opened.ok() ? Code::kInternal : opened.error().code();
  };
  EXPECT_EQ(code(std::string(300, 'w')), Code::kInvalid);
  EXPECT_EQ(code("circle"), Code::kInvalid);
  EXPECT_EQ(code("nothing"), Code::kNotFound);
  EXPECT_EQ(code("closed/text/below"), Code::kNotFound);
  const bool is_root = ::geteuid() == 0;  // who may read everything
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  ASSERT_EQ(::chmod((folder + "/closed").c_str(), 0), 0);
  if (!is_root || ::seteuid(65534) == 0) {
    EXPECT_EQ(code("closed/text"), Code::kDenied);
    ASSERT_TRUE(!is_root || ::seteuid(0) == 0);
  }
  ASSERT_EQ(::chmod((folder + "/closed").c_str(), 0755), 0);
  std::filesystem::remove_all(folder);
}

// A pipe has an end that may never come, and no places.
TEST(PosixFiles, OpensNothingButRegularFiles) {
  std::string folder = ::testing::TempDir() + "/pipes-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  PosixFileSystem files;
  const std::string pipe = folder + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_directory(folder + "/below");
  for (const std::string& path : {pipe, folder + "/below", std::string("/dev/null")}) {
    for (const auto& refused :
         {files.open(path, OpenMode::kRead).error(), files.map(path).error()}) {
      EXPECT_EQ(refused.code(), Code::kInvalid);
      EXPECT_EQ(refused.what(), path + " is not a regular file");
    }
  }
  EXPECT_EQ(files.open(pipe, OpenMode::kUpdate).error().what(), pipe + " is not a regular file");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace rubato
