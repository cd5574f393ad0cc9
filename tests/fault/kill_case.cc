#include "tests/fault/kill_case.h"

#include "common/check.h"

#include <array>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

namespace rubato::fault {
namespace {

using Phases = std::initializer_list<const char*>;
using Faults = std::initializer_list<Fault>;

constexpr Faults kUsual = {Fault::kKill, Fault::kPod, Fault::kFreeze, Fault::kCut};
constexpr Faults kDisk = {Fault::kFull, Fault::kSlow, Fault::kEio};
constexpr Faults kNoCut = {Fault::kKill, Fault::kPod, Fault::kFreeze};

// Each phase with each fault, one hit a case.
void add(std::vector<KillCase>& cases, Scene scene, int world, Role role, Phases phases,
         Faults faults, bool replace = false) {
  for (const char* phase : phases)
    for (const Fault fault : faults) {
      KillCase one{scene, world, {{role, phase, fault}}, replace};
      if (scene == Scene::kRecover)
        one.hits.insert(one.hits.begin(), {Role::kLast, "commit", Fault::kPod});
      if (scene == Scene::kLevel)
        one.hits.insert(one.hits.begin(), {Role::kFirst, "commit", Fault::kSplit});
      cases.push_back(std::move(one));
    }
}

void add_steps(std::vector<KillCase>& cases) {
  const Phases phases = {"compute", "accumulate", "reduce", "commit", "apply", "publish"};
  for (int world = 1; world <= 4; ++world) {
    add(cases, Scene::kStep, world, Role::kFirst, phases, kUsual);
    add(cases, Scene::kStep, world, Role::kFirst, {"checkpoint"}, kUsual);
    if (world > 1) add(cases, Scene::kStep, world, Role::kLast, phases, kUsual);
    add(cases, Scene::kStep, world, world == 1 ? Role::kFirst : Role::kLast,
        {"compute", "accumulate", "reduce", "commit", "apply"}, {Fault::kStop});
    if (world > 1)
      add(cases, Scene::kStep, world, Role::kFirst, {"compute", "reduce", "commit", "apply"},
          {Fault::kStop});
  }
  add(cases, Scene::kStep, 1, Role::kFirst, {"commit"}, {Fault::kDeaf});
  for (const int world : {2, 3}) {
    add(cases, Scene::kStep, world, Role::kFirst, {"reduce", "commit", "apply"}, {Fault::kDeaf});
    add(cases, Scene::kStep, world, Role::kFirst, {"commit"}, {Fault::kSplit});
    add(cases, Scene::kStep, world, Role::kLast, {"commit"}, {Fault::kDeaf, Fault::kSplit});
  }
  add(cases, Scene::kStep, 4, Role::kFirst, {"compute", "reduce", "commit"}, {Fault::kRack});
  // The only one is silent, another starts from a checkpoint, and then it comes back.
  add(cases, Scene::kStep, 1, Role::kFirst, {"commit", "apply"}, {Fault::kFreeze, Fault::kCut},
      true);
}

void add_pairs(std::vector<KillCase>& cases) {
  struct Two {
    Role a;
    const char* at_a;
    Role b;
    const char* at_b;
  };
  const Two places[] = {{Role::kFirst, "commit", Role::kSecond, "commit"},
                        {Role::kFirst, "reduce", Role::kLast, "apply"},
                        {Role::kFirst, "apply", Role::kLast, "reduce"},
                        {Role::kFirst, "publish", Role::kLast, "commit"},
                        {Role::kSecond, "compute", Role::kLast, "apply"}};
  const std::pair<Fault, Fault> faults[] = {
      {Fault::kKill, Fault::kKill},     {Fault::kPod, Fault::kPod},
      {Fault::kFreeze, Fault::kFreeze}, {Fault::kCut, Fault::kCut},
      {Fault::kKill, Fault::kFreeze},   {Fault::kCut, Fault::kPod}};
  for (const int world : {3, 4})
    for (const Two& two : places)
      for (const auto& [a, b] : faults)
        cases.push_back({Scene::kStep, world, {{two.a, two.at_a, a}, {two.b, two.at_b, b}}, false});
  for (const Fault fault : kUsual)  // all of them
    cases.push_back({Scene::kStep,
                     2,
                     {{Role::kFirst, "commit", fault}, {Role::kLast, "commit", fault}},
                     false});
  for (const Fault fault : kUsual) {
    cases.push_back({Scene::kJoin,
                     2,
                     {{Role::kFirst, "prepared", fault}, {Role::kNewcomer, "prepared", fault}},
                     false});
    cases.push_back({Scene::kJoin,
                     2,
                     {{Role::kFirst, "donate", fault}, {Role::kNewcomer, "pull", fault}},
                     false});
  }
}

void add_changes(std::vector<KillCase>& cases) {
  for (const int world : {1, 2, 3})
    add(cases, Scene::kJoin, world, Role::kNewcomer, {"pull", "follow", "prepare", "prepared"},
        kUsual);
  for (const int world : {1, 2})
    add(cases, Scene::kJoin, world, Role::kNewcomer, {"prepare"}, {Fault::kDeaf, Fault::kSplit});
  for (const int world : {1, 3})
    add(cases, Scene::kJoin, world, Role::kFirst, {"donate", "prepare", "prepared", "switch"},
        kUsual);
  for (const int world : {2, 3})
    add(cases, Scene::kJoin, world, Role::kLast, {"prepared", "switch"}, kUsual);
  for (const int world : {2, 3}) {
    add(cases, Scene::kLeave, world, Role::kLast, {"prepared", "switch"}, kUsual);
    add(cases, Scene::kLeave, world, Role::kFirst, {"prepared", "switch"}, kUsual);
  }
  for (const int world : {2, 3, 4})
    add(cases, Scene::kRecover, world, Role::kFirst, {"abort", "fence", "form", "connect"}, kUsual);
  for (const int world : {3, 4}) {
    add(cases, Scene::kRecover, world, Role::kSecond, {"fence", "connect"}, kUsual);
    add(cases, Scene::kLevel, world, Role::kSecond, {"level"}, kUsual);
    add(cases, Scene::kLevel, world, Role::kLast, {"level"}, kUsual);
  }
}

// Whose disk, or everybody's, breaks as rank 0 writes a checkpoint; and with somebody lost besides.
void add_disks(std::vector<KillCase>& cases) {
  const auto at = [](Role role, const char* phase, Fault fault, bool everywhere) {
    return Hit{role, phase, fault, everywhere};
  };
  for (const Fault fault : kDisk) {
    for (const Scene scene : {Scene::kStep, Scene::kEnd})
      cases.push_back({scene, 3, {Hit{Role::kFirst, "checkpoint", fault, true, true}}, false});
    for (const int world : {1, 3})
      for (const bool everywhere : {false, true}) {
        if (world == 1 && everywhere) continue;  // the same
        cases.push_back(
            {Scene::kStep, world, {at(Role::kFirst, "checkpoint", fault, everywhere)}, false});
      }
    cases.push_back({Scene::kStep, 3, {at(Role::kLast, "commit", fault, false)}, false});
    cases.push_back({Scene::kJoin, 2, {at(Role::kNewcomer, "pull", fault, false)}, false});
    cases.push_back({Scene::kEnd, 2, {at(Role::kFirst, "checkpoint", fault, true)}, false});
    for (const Fault other : {Fault::kKill, Fault::kPod})
      cases.push_back(
          {Scene::kStep,
           3,
           {at(Role::kFirst, "checkpoint", fault, true), at(Role::kLast, "commit", other, false)},
           false});
    // Who holds the state is gone, and the checkpoints cannot be read, or not soon.
    cases.push_back({Scene::kStep,
                     2,
                     {at(Role::kFirst, "checkpoint", fault, true),
                      at(Role::kLast, "commit", Fault::kPod, false)},
                     true});
  }
}

// Six workers that share 64 micro-batches: rings, votes and shares of another size.
void add_wide(std::vector<KillCase>& cases) {
  constexpr int kWorkers = 6;
  constexpr std::uint32_t kMany = 64;
  const auto add_one = [&](Scene scene, std::vector<Hit> hits) {
    cases.push_back({scene, kWorkers, std::move(hits), false, kMany});
  };
  for (const Fault fault : kUsual) {
    for (const char* phase : {"compute", "accumulate", "reduce", "commit", "apply", "publish"}) {
      add_one(Scene::kStep, {{Role::kFirst, phase, fault}});
      add_one(Scene::kStep, {{Role::kLast, phase, fault}});
    }
    add_one(Scene::kStep, {{Role::kFirst, "checkpoint", fault}});
    add_one(Scene::kJoin, {{Role::kNewcomer, "prepared", fault}});
    add_one(Scene::kJoin, {{Role::kFirst, "switch", fault}});
    add_one(Scene::kLeave, {{Role::kFirst, "switch", fault}});
    add_one(Scene::kRecover,
            {{Role::kLast, "commit", Fault::kPod}, {Role::kFirst, "fence", fault}});
    add_one(Scene::kRecover,
            {{Role::kLast, "commit", Fault::kPod}, {Role::kSecond, "connect", fault}});
    add_one(Scene::kLevel,
            {{Role::kFirst, "commit", Fault::kSplit}, {Role::kLast, "level", fault}});
    add_one(Scene::kEnd, {{Role::kFirst, "finish", fault}});
    add_one(Scene::kLeader, {{Role::kFirst, "commit", fault}});
  }
  for (const Fault fault : kDisk) {
    for (const bool everywhere : {false, true})
      add_one(Scene::kStep, {{Role::kFirst, "checkpoint", fault, everywhere}});
    add_one(Scene::kStep, {{Role::kFirst, "checkpoint", fault, true, true}});
    add_one(Scene::kStep, {{Role::kLast, "commit", fault}});
    add_one(Scene::kJoin, {{Role::kNewcomer, "pull", fault}});
    add_one(Scene::kEnd, {{Role::kFirst, "checkpoint", fault, true}});
    add_one(Scene::kStep,
            {{Role::kFirst, "checkpoint", fault, true}, {Role::kLast, "commit", Fault::kPod}});
  }
  for (const char* phase : {"compute", "reduce", "commit"})
    add_one(Scene::kStep, {{Role::kFirst, phase, Fault::kRack}});
  add_one(Scene::kStep, {{Role::kFirst, "commit", Fault::kDeaf}});
  add_one(Scene::kStep, {{Role::kLast, "commit", Fault::kSplit}});
  add_one(Scene::kStep, {{Role::kThird, "reduce", Fault::kStop}});
}

// Three at once, of one kind and of three.
void add_triples(std::vector<KillCase>& cases) {
  struct Three {
    const char* first;
    const char* second;
    const char* third;
  };
  const Three places[] = {{"commit", "commit", "commit"},
                          {"reduce", "apply", "compute"},
                          {"checkpoint", "commit", "apply"}};
  const std::array<Fault, 3> faults[] = {
      {Fault::kKill, Fault::kKill, Fault::kKill},       {Fault::kPod, Fault::kPod, Fault::kPod},
      {Fault::kFreeze, Fault::kFreeze, Fault::kFreeze}, {Fault::kCut, Fault::kCut, Fault::kCut},
      {Fault::kKill, Fault::kFreeze, Fault::kCut},      {Fault::kPod, Fault::kCut, Fault::kStop}};
  for (const auto& [world, many] : {std::pair{4, kUsualMicroBatches}, std::pair{6, 64u}})
    for (const Three& at : places)
      for (const auto& [a, b, c] : faults)
        cases.push_back({Scene::kStep,
                         world,
                         {{Role::kFirst, at.first, a},
                          {Role::kSecond, at.second, b},
                          {Role::kThird, at.third, c}},
                         false,
                         many});
  for (const Fault fault : kDisk)
    cases.push_back({Scene::kStep,
                     4,
                     {{Role::kFirst, "checkpoint", fault, true},
                      {Role::kSecond, "commit", Fault::kKill},
                      {Role::kLast, "apply", Fault::kFreeze}},
                     false});
}

void add_edges(std::vector<KillCase>& cases) {
  for (const int world : {1, 2, 3})
    add(cases, Scene::kStart, world, Role::kFirst, {"form", "connect"}, kNoCut);
  for (const int world : {2, 3})
    add(cases, Scene::kStart, world, Role::kLast, {"form", "connect"}, kNoCut);
  for (const int world : {1, 2, 3})
    add(cases, Scene::kEnd, world, Role::kFirst, {"checkpoint", "finish"}, kUsual);
  for (const int world : {2, 3})
    add(cases, Scene::kEnd, world, Role::kLast, {"compare", "finish"}, kUsual);
  for (const int world : {2, 3})
    for (const Role role : {Role::kFirst, Role::kLast})
      add(cases, Scene::kStep, world, role, {"compare"}, kUsual);
  for (const int world : {2, 3}) {
    cases.push_back({Scene::kLeader, world, {}, false});
    add(cases, Scene::kLeader, world, Role::kFirst, {"commit", "apply"}, kUsual);
    add(cases, Scene::kPark, world, Role::kLast, {"commit", "apply"},
        {Fault::kPod, Fault::kFreeze});
  }
}

}  // namespace

const char* name_of(Scene scene) {
  switch (scene) {
    case Scene::kStep:
      return "step";
    case Scene::kJoin:
      return "join";
    case Scene::kLeave:
      return "leave";
    case Scene::kRecover:
      return "recover";
    case Scene::kLevel:
      return "level";
    case Scene::kStart:
      return "start";
    case Scene::kEnd:
      return "end";
    case Scene::kLeader:
      return "leader";
    case Scene::kPark:
      return "park";
  }
  return "?";
}

const char* name_of(Fault fault) {
  switch (fault) {
    case Fault::kKill:
      return "kill";
    case Fault::kPod:
      return "pod";
    case Fault::kStop:
      return "stop";
    case Fault::kFreeze:
      return "freeze";
    case Fault::kCut:
      return "cut";
    case Fault::kDeaf:
      return "deaf";
    case Fault::kSplit:
      return "split";
    case Fault::kRack:
      return "rack";
    case Fault::kFull:
      return "full";
    case Fault::kSlow:
      return "slow";
    case Fault::kEio:
      return "eio";
  }
  return "?";
}

bool is_of_network(Fault fault) {
  return fault == Fault::kCut || fault == Fault::kDeaf || fault == Fault::kSplit ||
         fault == Fault::kRack;
}

bool is_of_disk(Fault fault) {
  return fault == Fault::kFull || fault == Fault::kSlow || fault == Fault::kEio;
}

bool is_of_recovery(Scene scene) { return scene == Scene::kRecover || scene == Scene::kLevel; }

const char* name_of(Role role) {
  switch (role) {
    case Role::kFirst:
      return "first";
    case Role::kSecond:
      return "second";
    case Role::kThird:
      return "third";
    case Role::kLast:
      return "last";
    case Role::kNewcomer:
      return "newcomer";
  }
  return "?";
}

std::string KillCase::name() const {
  std::string text = fmt::format("{}/{}", name_of(scene), world);
  if (micro_batches != kUsualMicroBatches) text += fmt::format("x{}", micro_batches);
  for (const Hit& hit : hits)
    text += fmt::format("/{}-{}-{}{}{}", name_of(hit.role), hit.phase, name_of(hit.fault),
                        hit.everywhere ? "-everywhere" : "", hit.is_long ? "-long" : "");
  return replace ? text + "/replaced" : text;
}

int KillCase::pod_of(Role role) const {
  switch (role) {
    case Role::kFirst:
      return 0;
    case Role::kSecond:
      return 1;
    case Role::kThird:
      return 2;
    case Role::kLast:
      return world - 1;
    case Role::kNewcomer:
      return world;
  }
  return 0;
}

std::vector<KillCase> all_cases() {
  std::vector<KillCase> cases;
  add_steps(cases);
  add_changes(cases);
  add_pairs(cases);
  add_edges(cases);
  add_triples(cases);
  add_disks(cases);
  add_wide(cases);
  return cases;
}

std::vector<std::string> telling_cases() {
  return {
      "step/1/first-commit-kill",
      "step/2/last-commit-pod",
      "step/3/first-apply-kill",
      "step/4/last-reduce-freeze",
      "step/3/last-publish-cut",
      "step/2/first-apply-deaf",
      "step/2/last-reduce-stop",
      "step/1/first-apply-cut/replaced",
      "step/3/first-checkpoint-pod",
      "step/3/first-reduce-kill/last-apply-freeze",
      "step/4/first-reduce-pod/second-apply-cut/third-compute-stop",
      "step/6x64/first-commit-kill/second-commit-freeze/third-commit-cut",
      "recover/6x64/last-commit-pod/second-connect-kill",
      "step/4/first-commit-rack",
      "level/3/first-commit-split/last-level-kill",
      "step/3/first-checkpoint-slow-everywhere",
      "step/3/first-checkpoint-eio-everywhere-long",
      "step/3/first-checkpoint-full",
      "end/2/first-checkpoint-eio-everywhere",
      "join/2/newcomer-pull-eio",
      "join/1/first-donate-kill",
      "join/2/newcomer-prepared-kill",
      "join/3/first-switch-pod",
      "leave/3/first-prepared-kill",
      "recover/3/last-commit-pod/first-fence-kill",
      "recover/4/last-commit-pod/first-connect-cut",
      "start/2/last-connect-kill",
      "end/2/first-checkpoint-pod",
      "leader/2/first-commit-kill",
      "park/2/last-apply-pod",
  };
}

}  // namespace rubato::fault
