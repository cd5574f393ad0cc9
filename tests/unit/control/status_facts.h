// What is known of a job, for the tests of its status.
#pragma once

#include "operator/control/job_status.h"
#include "tests/sentences.h"
#include "tests/unit/control/fixtures.h"

namespace rubato::control {

inline constexpr const char* kAllocated =
    R"("allocation":{"epoch":1,"nextOrdinal":2,"gpus":2,"reason":"free","pods":[
       {"name":"job-w0","ordinal":0,"node":"n1","gpuType":"A","gpus":1},
       {"name":"job-w1","ordinal":1,"node":"n2","gpuType":"A","gpus":1}]})";

inline coordinator::View view(coordinator::Phase phase, std::uint32_t members) {
  coordinator::View v;
  v.phase = phase;
  v.generation = 1;
  for (std::uint32_t i = 0; i < members; ++i) {
    v.members.push_back({"job-w" + std::to_string(i), "p", "n", "A", 0, 0});
  }
  v.step = 41;
  v.loss = 3.18;
  v.step_seconds = 0.5;
  return v;
}

inline api::TrainingJobStatus status(const JobObject& object,
                                     std::optional<coordinator::View> v = {},
                                     std::optional<JobVerdict> verdict = {},
                                     std::vector<std::string> pods_left = {}) {
  JobFacts facts;
  facts.job = &object.job;
  facts.view = std::move(v);
  facts.verdict = std::move(verdict);
  facts.pods_left = std::move(pods_left);
  facts.now = *parse_rfc3339("2026-11-21T08:00:00Z");
  api::TrainingJobStatus said = status_of(facts);
  for (const auto& condition : said.conditions)
    EXPECT_EQ(wrong_number(condition.message), "") << condition.type;
  return said;
}

}  // namespace rubato::control
