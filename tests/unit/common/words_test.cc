#include "common/words.h"

#include "common/command.h"
#include "common/dns_names.h"
#include "tests/sentences.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace rubato {
namespace {

TEST(Words, OneIsSingularAndAllElseIsPlural) {
  EXPECT_EQ(counted(0, "GPU"), "0 GPUs");
  EXPECT_EQ(counted(1, "GPU"), "1 GPU");
  EXPECT_EQ(counted(-1, "GPU"), "-1 GPUs");
  EXPECT_EQ(counted(std::uint64_t{1}, "ready worker"), "1 ready worker");
  EXPECT_EQ(counted(~std::uint64_t{0}, "step"), "18446744073709551615 steps");
  EXPECT_EQ(counted(1, "micro-batch"), "1 micro-batch");
  EXPECT_EQ(counted(2, "micro-batch"), "2 micro-batches");
  EXPECT_EQ(counted(3, "loss"), "3 losses");
}

TEST(Words, VerbsAgree) {
  EXPECT_EQ(counted(1, "GPU", "is", "are"), "1 GPU is");
  EXPECT_EQ(counted(2, "GPU", "is", "are"), "2 GPUs are");
  EXPECT_EQ(counted(0, "worker", "waits", "wait"), "0 workers wait");
  EXPECT_EQ(agreeing(1, "has", "have"), "has");
}

TEST(Words, OfPartsTheWholeDecides) {
  EXPECT_EQ(counted_of(1, 3, "GPU"), "1 of 3 GPUs");
  EXPECT_EQ(counted_of(0, 1u, "GPU"), "0 of 1 GPU");
}

TEST(Words, ALongTextIsCutBetweenCharacters) {
  EXPECT_EQ(clipped("", 0), "");
  EXPECT_EQ(clipped("abc", 3), "abc");
  EXPECT_EQ(clipped("abcd", 3), "abc …");
  EXPECT_EQ(clipped("aé€", 6), "aé€");
  EXPECT_EQ(clipped("aé€", 5), "aé …");
  EXPECT_EQ(clipped("aé€", 2), "a …");
  EXPECT_EQ(clipped("é", 1), " …");
}

TEST(Words, BytesForPeople) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(std::uint64_t{7} << 30), "7.0 GiB");
  EXPECT_EQ(human_bytes(std::uint64_t{3} << 60), "3072.0 PiB");
}

TEST(Words, OfAShellAreQuotedWhereTheyMustBe) {
  EXPECT_EQ(shell_word("/root/.kube/config-1"), "/root/.kube/config-1");
  EXPECT_EQ(shell_word("/a b"), "'/a b'");
  EXPECT_EQ(shell_word("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Words, OfDnsAreThoseOfRfc1123) {
  for (const char* right : {"a", "n1", "0-a", "n1-2"}) {
    EXPECT_TRUE(is_dns_label(right)) << right;
    EXPECT_TRUE(is_dns_subdomain(right)) << right;
  }
  EXPECT_TRUE(is_dns_subdomain("kjv.data"));
  EXPECT_FALSE(is_dns_label("kjv.data"));
  for (const char* wrong :
       {"", "Bad_Name", "../x", "..", ".", "-a", "a-", "a..b", "a.", "a/b", "a b"}) {
    EXPECT_FALSE(is_dns_label(wrong)) << wrong;
    EXPECT_FALSE(is_dns_subdomain(wrong)) << wrong;
  }
}

TEST(Words, NumbersOfOptionsAreWithinTheirBounds) {
  const auto check = number_from(0, 100);
  for (const char* right : {"0", "100", "0.5", "1e2"}) EXPECT_EQ(check(right), "") << right;
  for (const char* wrong : {"", "nan", "-nan", "inf", "-1", "100.1", "1x", "x"})
    EXPECT_NE(check(wrong), "") << wrong;
  EXPECT_EQ(check("nan"), "nan: expected a number from 0 to 100");
}

// What the tests hold sentences to.
TEST(Words, AMistakeInNumberIsFound) {
  for (const char* wrong :
       {"start to 3 GPUs: 1 GPUs are free", "1 nodes", "waiting for 1 ready workers",
        "0 of 1 workers", "needs 2 more GPUs, 1 are free for it", "(1 micro-batches kept)"})
    EXPECT_NE(wrong_number(wrong), "") << wrong;
  for (const char* right :
       {"", "1", "starts with 1 GPU", "1 of 2 workers waits", "from 1 to 2 workers", "11 workers",
        "generation 1: pods a, b", "0.1 seconds", "epoch 1, 3 GPUs", "1 GPU is free, 2 nodes are"})
    EXPECT_EQ(wrong_number(right), "") << right;
}

TEST(Words, WhatIsPrintedIsOneLineOfText) {
  EXPECT_EQ(readable("a\nb\x1b[31m \xff\xc3\xa4"), "a b [31m ?\xc3\xa4");
  EXPECT_EQ(readable("\xc2\x80\xc2\x9b\xc2\x9f\xc2\xa0"), "   \xc2\xa0");
  EXPECT_EQ(excerpt("a\n" + std::string(100, 'b')), "a " + std::string(78, 'b') + " …");
}

}  // namespace
}  // namespace rubato
