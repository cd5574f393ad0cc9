// docs/policies.md from the descriptors: registry.h.
#include "scheduler/policy/missing_mechanism.h"
#include "scheduler/policy/registry.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato::sched {
namespace {

constexpr const char* kHead = R"(# Scheduling policies

<!-- Written by rubato-apigen from scheduler/policy. Do not edit: run `make crds`. -->

A policy says in which order jobs are served, and whom they may displace. All else is the same under every policy:

- Each job gets its minimum (`gpus.min`), in that order; those inside the guarantee of their queue come first.
- Room is made by pods that are leaving, then by what elastic jobs have beyond their minimum (under `rubato`, which says
  sizes for jobs to start with: beyond their size), then by preempting those whom the policy lets a job displace, as far
  as its queue and priority class allow it. What a queue has lent of its guarantee it gets back under every policy, down
  to minimums. In a queue that has all that its limit allows its own jobs make room for each other so.
- A job that is [not to be preempted](queues.md#jobs-that-are-not-to-be-preempted) and runs keeps its minimum, and is
  not moved for others.
- What a job has on nodes that are [about to go](install.md#maintenance-and-spot-nodes) moves to others that have room.
- A job that may use several GPU types starts, where the policy says nothing of types, on the one that fewest waiting
  jobs are bound to.
- Priority (`priorityClassName`) comes before any policy's own order.
- A job whose pods did not start in time gets only what is free, after all others, for twice as long as they had, and
  twice as long after each further such start in a row, at most an hour: nobody makes room for it.
- What is left over raises elastic jobs towards `gpus.max`, one step at a time, to whoever gains most throughput by it.

The SchedulingPolicy named `default` is in force. It may be changed while jobs train: the next round decides by the new
one. A parameter that a policy does not know is refused, the condition `Active` says why, and what was in force stays,
under the next leader too: `status.inForce` has it. Where that is of another release, which refuses a part of it, the
rest stays.

```yaml
apiVersion: rubato.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: default}
spec:
  policy: tiresias
  parameters: {firstLimitGpuSeconds: 36000, secondLimitGpuSeconds: 360000}
```

Measured on one set of traces: [benchmarks.md](benchmarks.md#policies). What a policy would have done with your jobs:
`rubatoctl simulate --compare` ([simulate.md](simulate.md)); what it does with one state of your cluster: `rubatoctl
plan` ([snapshot.md](snapshot.md)), and what another one would do with it: `rubatoctl what-if --policy`
([there](snapshot.md#what-if)).

)";

constexpr const char* kRest = R"(

`maxLoad` is load-based admission, as in Blox (EuroSys 2024). Jobs are admitted in the order in which they came while
their minimums are at most `maxLoad` times the healthy GPUs of the types that they may use. The others wait (`LoadLimit`)
and no policy sees them. Jobs that have run before, those inside the guarantee of their queue, and one with nobody before
it are always admitted; who does not fit, or whose queue is full, does not count. It is for policies that let jobs take
turns or shrink each other (`las`, `tiresias`, `gavel`, `pollux`, `themis`): above 1, so that somebody waits for each GPU
that comes free.

With `queueWeights` 1 the weights of queues count under every policy: what each would get of all minimums by weighted
fairness is guaranteed to it ([queues](queues.md#weights)). Which of its jobs are served by that is the policy's affair.

| policy | what it does | knows |
| --- | --- | --- |
)";

constexpr std::size_t kWidth = 120;

std::string paragraph(const std::string& text) {
  std::string lines, line;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t to = std::min(text.find(' ', from), text.size());
    const std::string word = text.substr(from, to - from);
    if (!line.empty() && line.size() + 1 + word.size() > kWidth) {
      lines += line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    from = to + 1;
  }
  return lines + line;
}

std::string parameters_of(const Descriptor& policy) {
  if (policy.parameters.empty()) return "Parameters: none of its own.\n";
  std::string text = "| parameter | default | range | meaning |\n| --- | --- | --- | --- |\n";
  for (const Parameter& p : policy.parameters)
    text += fmt::format("| `{}` | {:.15g} | {:.15g} to {:.15g}{} | {} |\n", p.name, p.standard,
                        p.least, p.most, p.unit.empty() ? "" : " " + p.unit, p.about);
  return text;
}

std::string needs_of(const Descriptor& policy) {
  const std::string missing = missing_mechanism(policy);
  if (missing.empty()) return "";
  return "\n\n" + paragraph(fmt::format(
                      "Needs {}: the simulator plays it; a SchedulingPolicy is refused, or runs "
                      "without it, where `missingMechanism` is `Degrade`.",
                      missing));
}

const char* what_it_knows(Knows knows) {
  switch (knows) {
    case Knows::kNothing:
      return "what was observed";
    case Knows::kDuration:
      return "how long a job takes: its steps at the throughput measured of it";
    case Knows::kRemaining:
      return "how long a job still takes: its steps left at the throughput measured of it";
  }
  return "";
}

}  // namespace

std::string policies_page() {
  std::string text =
      kHead + paragraph(fmt::format("Parameters of all policies: {}.", kCommonParametersText)) +
      kRest;
  for (const Descriptor& policy : all_policies())
    text +=
        fmt::format("| `{}` | {} | {} |\n", policy.name, policy.about, what_it_knows(policy.knows));
  for (const Descriptor& policy : all_policies())
    text += fmt::format("\n## {}\n\n{}\n\n{}{}\n\n{}\n\n{}", policy.name, paragraph(policy.rule),
                        paragraph(policy.choose), needs_of(policy),
                        paragraph("Source: " + policy.source + "."), parameters_of(policy));
  return text;
}

}  // namespace rubato::sched
