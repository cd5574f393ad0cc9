#include "tools/rubatoctl/explain.h"

#include "common/json.h"
#include "operator/api/codec.h"
#include "tests/sentences.h"

#include <gtest/gtest.h>

namespace rubato::ctl {
namespace {

// Two nodes of two GPUs of A. a holds n1 for ten minutes yet, b holds one of n2; c wants two and d,
// which came later, wants two as well; e wants eight, and f is refused.
const std::string kExplainedSnapshot =
    R"({"version":1,"policy":{"name":"fifo"},"nodes":[)"
    R"({"id":"n1","gpuType":"A","gpus":2,"free":{"gpus":0}},)"
    R"({"id":"n2","gpuType":"A","gpus":2,"free":{"gpus":1}}],"queues":[{"name":"q"}],"jobs":[)"
    R"({"id":"1","name":"team/a","queue":"q","gpus":{"min":2,"max":2},"perPod":{"gpus":1},)"
    R"("remainingMs":600000,"started":true,"held":[)"
    R"({"ordinal":0,"node":"n1","gpuType":"A","gpus":1},)"
    R"({"ordinal":1,"node":"n1","gpuType":"A","gpus":1}]},)"
    R"({"id":"2","name":"team/b","queue":"q","gpus":{"min":1,"max":1},"perPod":{"gpus":1},)"
    R"("started":true,"held":[{"ordinal":0,"node":"n2","gpuType":"A","gpus":1}]},)"
    R"({"id":"3","name":"team/c","queue":"q","queuedAtSeconds":3,"gpus":{"min":2,"max":2},)"
    R"("perPod":{"gpus":1}},)"
    R"({"id":"4","name":"team/d","queue":"q","queuedAtSeconds":4,"gpus":{"min":2,"max":2},)"
    R"("perPod":{"gpus":1}},)"
    R"({"id":"5","name":"team/e","queue":"q","queuedAtSeconds":5,"gpus":{"min":8,"max":8},)"
    R"("perPod":{"gpus":1}},)"
    R"({"id":"6","name":"team/f","queue":"q","queuedAtSeconds":6,"gpus":{"min":1,"max":1},)"
    R"("perPod":{"gpus":1},"refused":"its claim is not there","refusedAs":"ClaimNotFound"}]})";

std::string told(const std::string& job, const std::string& text = kExplainedSnapshot) {
  const auto snapshot = sched::read_snapshot(text);
  if (!snapshot.ok()) return snapshot.error().what();
  const auto said = explain_text(*snapshot, job);
  EXPECT_EQ(wrong_number(said.ok() ? *said : said.error().what()), "");
  return said.ok() ? *said : said.error().what();
}

TEST(Explain, AJobThatRuns) {
  EXPECT_EQ(told("team/a"),
            "team/a holds 2 GPUs: 2 on n1 (A).\n"
            "It may have 2 GPUs, in queue \"q\", at priority 0.\n"
            "It goes on with what it holds.\n");
  EXPECT_EQ(told("team/a"), told("1"));
}

// What a snapshot says may be anybody's: each sentence stays one line of text.
TEST(Explain, NamesAreShownAsText) {
  std::string text = kExplainedSnapshot;
  const auto put = [&](std::string_view name, std::string_view instead) {
    for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name))
      text.replace(at, name.size(), instead);
  };
  put("team/b", "b\\n\\u001b[31m");
  put("its claim", "\\u0007its\\nclaim");
  EXPECT_NE(told("team/c", text).find("It would be placed without b  [31m.\n"), std::string::npos)
      << told("team/c", text);
  EXPECT_EQ(told("2", text).find("b  [31m holds 1 GPU: 1 on n2 (A).\n"), 0u);
  EXPECT_NE(told("6", text).find(" its claim"), std::string::npos) << told("6", text);
  EXPECT_EQ(told("nobody", text).find('\x1b'), std::string::npos);
}

TEST(Explain, AJobThatWaits) {
  EXPECT_EQ(told("team/c"),
            "team/c holds no GPUs.\n"
            "It may have 2 GPUs, in queue \"q\", at priority 0.\n"
            "It waits (InsufficientGPUs): needs 2 more GPUs, 1 is free for it; the rest is held by "
            "others, or promised to them, and by the policy, priorities and their minimums none of "
            "them has to make room for it.\n"
            "Of the jobs that wait for GPUs, policy fifo serves it first.\n"
            "It would be placed without team/b.\n"
            "It is expected to start in about 10 min, if others end as their progress says and "
            "nobody comes.\n");
  EXPECT_EQ(told("team/d"),
            "team/d holds no GPUs.\n"
            "It may have 2 GPUs, in queue \"q\", at priority 0.\n"
            "It waits (Behind): waits behind team/c, which comes first and does not fit yet.\n"
            "Policy fifo serves 1 other job first that waits, too: team/c.\n"
            "It would be placed without team/c, team/b.\n"
            "When it starts is not known: it is not known when enough of the others end.\n");
}

TEST(Explain, AJobThatCanNeverBePlaced) {
  EXPECT_EQ(told("team/e"),
            "team/e holds no GPUs.\n"
            "It may have 8 GPUs, in queue \"q\", at priority 0.\n"
            "It can never be placed (ExceedsCluster): needs 8 GPUs; the nodes it may use have 4 in "
            "all: lower spec.gpus.min to 4, or add nodes.\n"
            "The smallest change that helps: lower spec.gpus.min to 4.\n");
  EXPECT_EQ(told("team/f"),
            "team/f holds no GPUs.\n"
            "It may have 1 GPU, in queue \"q\", at priority 0.\n"
            "It waits (ClaimNotFound): its claim is not there.\n");
}

TEST(Explain, AJobThatStarts) {
  std::string text = kExplainedSnapshot;
  const std::string full = R"("gpus":2,"free":{"gpus":1})";
  text.replace(text.find(full), full.size(), R"("gpus":3,"free":{"gpus":2})");
  EXPECT_EQ(told("team/c", text),
            "team/c holds no GPUs.\n"
            "It may have 2 GPUs, in queue \"q\", at priority 0.\n"
            "Now it starts with 2 GPUs: there is room for it.\n");
}

TEST(Explain, NamesTheJobsThereAre) {
  EXPECT_EQ(told("nobody"),
            "there is no job \"nobody\"; there are team/a, team/b, team/c, team/d, team/e, team/f");
  std::string twins = kExplainedSnapshot;
  twins.replace(twins.find("team/b"), 6, "team/a");
  EXPECT_EQ(told("team/a", twins), "2 jobs are named \"team/a\"; say the id of one: 1, 2");
  EXPECT_EQ(told("a", R"({"version":1,"nodes":[],"jobs":[]})"), "the snapshot has no jobs");
}

std::string told_of_cluster(const std::string& status) {
  const auto object = json::parse(
      R"({"apiVersion":"rubato.dev/v1alpha1","kind":"TrainingJob","metadata":{"name":"gpt","namespace":"team"},)"
      R"("spec":{"gpus":{"min":1,"max":4}},"status":)" +
      status + "}");
  if (!object.ok()) return object.error().what();
  const auto job = api::decode_training_job(*object);
  if (!job.ok()) return job.error().what();
  return explain_text(*job, *parse_rfc3339("2026-11-25T07:05:00Z"));
}

TEST(Explain, WhatAClusterSays) {
  EXPECT_EQ(told_of_cluster("{}"), "team/gpt holds no GPUs.\nNo operator has looked at it yet.\n");
  EXPECT_EQ(
      told_of_cluster(
          R"({"state":"Queued","reason":"NeverFits","conditions":[{"type":"Queued","status":"True",)"
          R"("reason":"NeverFits","message":"needs 4 GPUs","lastTransitionTime":"2026-11-25T07:00:00Z"},)"
          R"({"type":"Running","status":"False","reason":"Stopped","message":"holds no GPUs"}]})"),
      "team/gpt holds no GPUs.\n"
      "Its state is Queued (NeverFits).\n"
      "Queued (NeverFits) for 5m: needs 4 GPUs.\n");
  EXPECT_EQ(
      told_of_cluster(
          R"({"state":"Running","reason":"Training","allocation":{"epoch":3,"gpus":2,"reason":"there is room for it",)"
          R"("pods":[{"name":"gpt-worker-0","ordinal":0,"node":"n1","gpuType":"A","gpus":1},)"
          R"({"name":"gpt-worker-1","ordinal":1,"node":"n2","gpuType":"A","gpus":1}]}})"),
      "team/gpt holds 2 GPUs: 1 on n1 (A), 1 on n2 (A).\n"
      "So it was decided because there is room for it.\n"
      "Its state is Running (Training).\n");
  EXPECT_EQ(
      told_of_cluster(
          R"({"state":"Complete","reason":"StepsReached","allocation":{"epoch":4,"gpus":0,"pods":[],)"
          R"("reason":"the job is suspended"}})"),
      "team/gpt holds no GPUs.\n"
      "Its state is Complete (StepsReached).\n");
  EXPECT_EQ(
      told_of_cluster(
          R"({"state":"Queued","reason":"NodesAvoided","avoidedNodes":[{"node":"n1","reason":"PodGivenUp",)"
          R"("message":"its image cannot be pulled","times":2,"until":"2026-11-25T07:10:00Z"},)"
          R"({"node":"n2","reason":"PodGivenUp","times":1,"until":"2026-11-25T07:04:00Z"},)"
          R"({"node":"n3","reason":"PodGivenUp","message":"its image cannot be pulled","times":1,)"
          R"("until":"2026-11-25T07:06:00Z"}]})"),
      "team/gpt holds no GPUs.\n"
      "Its state is Queued (NodesAvoided).\n"
      "It avoids n1 until 2026-11-25T07:10:00Z, n3 until 2026-11-25T07:06:00Z (PodGivenUp): "
      "its image cannot be pulled.\n");
}

}  // namespace
}  // namespace rubato::ctl
