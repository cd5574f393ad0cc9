// A job of a script, a round at a time: sums of any grouping, weights, clipping, checkpoints.
#include "worker/pytorch/torch_replica.h"

#include "common/files.h"
#include "tests/unit/worker/support/troubled_files.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/data/sampler.h"
#include "worker/model/exact_sum.h"
#include "worker/testing/plain_program.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

namespace rubato::worker {
namespace {

namespace fs = std::filesystem;

struct Member {
  std::unique_ptr<PlainProgram> program = std::make_unique<PlainProgram>();
  std::unique_ptr<Replica> replica;
};

class TorchReplicaTest : public ::testing::Test {
 protected:
  TorchReplicaTest() {
    char path[] = "/tmp/rubato-torch-XXXXXX";
    folder_ = mkdtemp(path);
    config_.has_model = false;
    config_.sampler.global_batch = 10;
    config_.sampler.micro_batch = 2;
    config_.stop_steps = 100;
    config_.checkpoint_path = folder_ + "/checkpoints";
  }
  ~TorchReplicaTest() override { fs::remove_all(folder_); }

  Result<Member> try_make(const std::function<void(PlainProgram&)>& edit = {},
                          const std::string& job_uid = "one") {
    Member member;
    if (edit) edit(*member.program);
    TRY(member.replica,
        make_torch_replica(config_, {.files = files_, .job_uid = job_uid, .numerics = numerics_},
                           *member.program));
    return member;
  }
  Member make(const std::function<void(PlainProgram&)>& edit = {}) {
    auto made = try_make(edit);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().to_string());
    return std::move(made).value();
  }
  static std::vector<std::byte> bytes_of(Replica& replica) {
    std::vector<std::byte> all;
    for (const Buffer& section : replica.sections()) {
      const auto* host = static_cast<const std::byte*>(replica.device().host_view(section));
      all.insert(all.end(), host, host + section.bytes());
    }
    return all;
  }
  // One committed step of all members, who share its micro-batches in turn.
  StepRecord step(std::vector<Member>& members) {
    for (std::uint32_t attempt = 0;; ++attempt) {
      std::int64_t loss = 0;
      std::uint64_t samples = 0;
      for (Member& each : members) each.replica->clear();
      for (std::uint32_t m = 0; m < members[0].replica->micro_batches(); ++m) {
        Replica& replica = *members[m % members.size()].replica;
        const MicroPart part = replica.compute({}, m).value();
        loss += part.loss_q;
        samples += part.sample_digest;
        EXPECT_TRUE(replica.accumulate().ok());
      }
      for (Member& each : members) each.replica->weigh();
      reduce(members);
      bool overflow = false;
      SumChecksum given, reduced;
      for (Member& each : members) {
        const Verdict verdict = each.replica->judge(attempt).value();
        overflow = verdict.overflow;
        given += verdict.given;
        reduced = verdict.reduced;
      }
      EXPECT_EQ(given.guards, reduced.guards);
      EXPECT_TRUE(overflow || given == reduced);
      redone_ += overflow ? 1 : 0;
      StepRecord record;
      for (Member& each : members) {
        if (overflow)
          EXPECT_TRUE(each.replica->raise(attempt).ok());
        else
          record = each.replica->apply(loss, samples).value();
      }
      if (!overflow) return record;
    }
  }
  static void reduce(std::vector<Member>& members) {
    const auto sums = [](Replica& replica, Buffer buffer) {
      return std::span(static_cast<std::int32_t*>(replica.device().host_view(buffer)),
                       static_cast<std::size_t>(buffer.count()));
    };
    std::vector<std::int32_t> total(
        static_cast<std::size_t>(members[0].replica->accumulators().count()));
    for (Member& each : members) {
      const auto part = sums(*each.replica, each.replica->accumulators());
      for (std::size_t i = 0; i < total.size(); ++i)
        total[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(total[i]) +
                                             static_cast<std::uint32_t>(part[i]));
    }
    for (Member& each : members)
      std::ranges::copy(total, sums(*each.replica, each.replica->reduced()).begin());
  }
  std::vector<Member> members(int count, const std::function<void(PlainProgram&)>& edit = {}) {
    std::vector<Member> all;
    for (int i = 0; i < count; ++i) {
      all.push_back(make(edit));
      EXPECT_TRUE(all.back().replica->init_from_seed().ok());
    }
    return all;
  }

  PosixFileSystem files_;
  std::string folder_;
  TrainingConfig config_;
  int numerics_ = 0;  // of the job; 0: it begins
  int redone_ = 0;
};

TEST_F(TorchReplicaTest, TheSameBytesForAnyNumberOfMembers) {
  for (const bool is_weighted : {false, true}) {
    const auto edit = [&](PlainProgram& program) {
      program.is_weighted = is_weighted;
      program.setup.max_grad_norm = 0.05;
    };
    std::vector<Member> one = members(1, edit), three = members(3, edit);
    for (int i = 0; i < 20; ++i) {
      const StepRecord alone = step(one), together = step(three);
      EXPECT_EQ(alone, together);
      for (Member& each : three) EXPECT_EQ(bytes_of(*each.replica), bytes_of(*one[0].replica));
    }
    EXPECT_EQ(one[0].replica->step(), 20u);
  }
}

// A job goes on under the numerics that it began with, whatever program its members run.
TEST_F(TorchReplicaTest, AJobKeepsItsNumerics) {
  for (const int pinned : {0, 2}) {
    numerics_ = pinned;
    const int numerics = pinned == 0 ? kNumericsVersion : pinned;
    EXPECT_EQ(numerics_version_of(make().replica->fingerprint().value()), numerics);
  }
}

// Its record is gone, and its checkpoint alone says which. A disk that does not answer for a moment
// is no reason to begin under others; what is damaged is passed over.
TEST_F(TorchReplicaTest, ADiskThatDoesNotAnswerNamesNoNumerics) {
  numerics_ = 2;
  std::vector<Member> one = members(1);
  std::vector<StepRecord> records{step(one)};
  ASSERT_TRUE(one[0].replica->snapshot().value()->save(records, 0).ok());
  records.push_back(step(one));
  const std::string newest = one[0].replica->snapshot().value()->save(records, 0).value();
  TroubledFiles troubled(files_);
  std::optional<Code> trouble;
  troubled.on_open = [&](const std::string& path) -> Status {
    if (!trouble || path != newest + "/run.json") return ok();
    return Error(*trouble, "reading " + path);
  };
  PlainProgram program;
  const auto begin = [&] {
    return make_torch_replica(config_, {.files = troubled, .job_uid = "one"}, program);
  };
  for (const Code code : {Code::kUnavailable, Code::kDenied}) {
    trouble = code;
    const auto made = begin();
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code(), code);
    EXPECT_EQ(made.error().reason(), "") << "no word for people: it is tried again";
    EXPECT_EQ(program.configured, 0) << "a script builds its model once";
  }
  for (const std::optional<Code> code : {std::optional<Code>(), std::optional(Code::kNotFound)}) {
    trouble = code;
    EXPECT_EQ(numerics_version_of(begin().value()->fingerprint().value()), 2);
  }
}

// Members of builds before sum no digits: to all of a job of theirs such a loss is not finite.
TEST_F(TorchReplicaTest, ALargeLossIsNotFiniteUnderOlderNumerics) {
  numerics_ = 2;
  std::vector<Member> one = members(1, [](PlainProgram& p) { p.loss_scale = 1e30; });
  EXPECT_TRUE(one[0].replica->compute({}, 0).value().non_finite);
  one[0].program->loss_scale = 1;
  EXPECT_FALSE(one[0].replica->compute({}, 0).value().non_finite);
}

// The loss of a step is that of all its samples, by their weights, however they were dealt out.
TEST_F(TorchReplicaTest, AWeightedLossIsTheMeanByWeight) {
  std::vector<Member> one = members(1, [](PlainProgram& program) { program.is_weighted = true; });
  // What all of the step's micro-batches say, by hand.
  double loss = 0;
  std::int64_t weight = 0;
  for (std::uint32_t m = 0; m < one[0].replica->micro_batches(); ++m) {
    const MicroPart part = one[0].replica->compute({}, m).value();
    loss += static_cast<double>(part.loss_q) * kLossQuantum;
  }
  Member probe = make([](PlainProgram& program) { program.is_weighted = true; });
  ASSERT_TRUE(probe.replica->init_from_seed().ok());
  TrainingConfig plain = config_;
  SamplerConfig sampling = plain.sampler;
  sampling.seed = 7;
  sampling.sequence_length = 1;
  sampling.validation_fraction = 0;
  const Sampler sampler = Sampler::create(sampling, 65).value();
  for (std::uint32_t m = 0; m < 5; ++m)
    for (const std::int64_t sample : sampler.micro_batch_ids(0, m)) weight += 1 + sample % 5;
  EXPECT_NEAR(step(one).loss(), loss / static_cast<double>(weight), 1e-9);
}

// Any f32 is a loss. At 5e9 some micro-batches are beyond what a step's integer sum has room for.
TEST_F(TorchReplicaTest, ALargeLossIsSummedAsExactly) {
  const double plain = [&] {
    std::vector<Member> one = members(1);
    return step(one).loss();
  }();
  for (const double scale : {5e9, -3e30, 1e38}) {
    const auto edit = [&](PlainProgram& program) { program.loss_scale = scale; };
    std::vector<Member> one = members(1, edit), three = members(3, edit);
    const StepRecord alone = step(one);
    EXPECT_EQ(alone, step(three));
    EXPECT_NEAR(alone.loss() / scale, plain, 1e-8);
    EXPECT_EQ(bytes_of(*three[2].replica), bytes_of(*one[0].replica));
  }
  std::vector<Member> one = members(1, [](PlainProgram& p) { p.loss_scale = 1e60; });
  EXPECT_TRUE(one[0].replica->compute({}, 0).value().non_finite);
  one[0].program->loss_scale = std::nan("");
  EXPECT_TRUE(one[0].replica->compute({}, 0).value().non_finite);
  EXPECT_EQ(one[0].replica->validate(0).value(), kNotFiniteQ) << "said, and trained on";
}

TEST_F(TorchReplicaTest, TheScriptIsToldWhatComesNext) {
  std::vector<Member> one = members(1, [](PlainProgram& program) { program.setup.ahead = 3; });
  Replica& replica = *one[0].replica;
  const auto after = [&](std::uint32_t micro) {
    EXPECT_TRUE(replica.compute({}, micro).ok());
    std::vector<std::pair<std::uint64_t, std::uint32_t>> places;
    for (const MicroBatch& each : one[0].program->ahead) places.emplace_back(each.step, each.micro);
    return places;
  };
  using Places = std::vector<std::pair<std::uint64_t, std::uint32_t>>;
  EXPECT_EQ(after(0), Places()) << "nothing is expected yet";
  replica.expect(std::array<std::uint32_t, 3>{1, 2, 4});
  EXPECT_EQ(after(1), (Places{{0, 2}, {0, 4}, {1, 1}}));
  const std::vector<std::int64_t> told = one[0].program->ahead[2].samples;
  EXPECT_EQ(after(4), (Places{{1, 1}, {1, 2}, {1, 4}}));
  EXPECT_EQ(after(3), Places()) << "not what was expected";
  step(one);
  replica.expect(std::array<std::uint32_t, 1>{1});
  EXPECT_EQ(after(1), (Places{{2, 1}, {3, 1}, {4, 1}}));
  EXPECT_EQ(one[0].program->samples, told);
  config_.stop_steps = 2;
  std::vector<Member> short_one =
      members(1, [](PlainProgram& program) { program.setup.ahead = 3; });
  short_one[0].replica->expect(std::array<std::uint32_t, 1>{1});
  EXPECT_TRUE(short_one[0].replica->compute({}, 1).ok());
  EXPECT_EQ(short_one[0].program->ahead.size(), 1u) << "there is no step after the last";
}

TEST_F(TorchReplicaTest, AGradientThatGrowsIsSummedAnew) {
  std::vector<Member> two = members(2);
  step(two);
  for (Member& each : two) each.program->scale = 4096;
  step(two);
  EXPECT_GT(redone_, 0);
  EXPECT_EQ(bytes_of(*two[0].replica), bytes_of(*two[1].replica));
}

TEST_F(TorchReplicaTest, ACheckpointIsTheStateAndAnyReaderSeesItsTensors) {
  std::vector<Member> one = members(1);
  std::vector<StepRecord> records;
  for (int i = 0; i < 4; ++i) records.push_back(step(one));
  const std::string path = one[0].replica->snapshot().value()->save(records, 2).value();
  const auto at_four = bytes_of(*one[0].replica);
  step(one);

  const Safetensors weights = Safetensors::open(files_, path + "/model.safetensors").value();
  EXPECT_EQ(weights.find("weight")->shape, std::vector<std::int64_t>{PlainProgram::kWeights});
  EXPECT_EQ(weights.find("bias")->shape, std::vector<std::int64_t>{});
  EXPECT_EQ(weights.find("mask")->dtype, "BOOL");

  std::vector<Member> resumed;
  resumed.push_back(make());
  Replica& replica = *resumed[0].replica;
  EXPECT_EQ(replica.checkpoints().value(), std::vector<std::uint64_t>{4});
  const LoadedCheckpoint loaded = replica.load_checkpoint(4).value();
  EXPECT_EQ(loaded.records, records);
  EXPECT_EQ(loaded.redo_attempts, 2u);
  EXPECT_EQ(bytes_of(replica), at_four);
  step(resumed);
  EXPECT_EQ(resumed[0].program->loaded_at, 4u);
  EXPECT_EQ(bytes_of(replica), bytes_of(*one[0].replica));

  // Another model, another seed, another job: refused with what differs.
  const auto refused = [&](const std::function<void(PlainProgram&)>& edit,
                           const std::string& job_uid = "one") {
    const auto made = try_make(edit, job_uid);
    return made.ok() ? "" : made.error().what();
  };
  EXPECT_NE(refused([](PlainProgram& p) {
              p.setup.tensors[2].shape = {4};
            }).find("what the script trains"),
            std::string::npos);
  EXPECT_NE(refused([](PlainProgram& p) { p.setup.seed = 8; }).find("seed"), std::string::npos);
  EXPECT_NE(refused({}, "two").find("belongs to the job with uid one"), std::string::npos);
}

// What the model's state_dict() has not, model.safetensors has not. Builds before wrote it there,
// and look for it there, so that it stays where the job is of older numerics.
TEST_F(TorchReplicaTest, TheModelsFileHasWhatItsStateDictHas) {
  const auto edit = [](PlainProgram& program) { program.setup.tensors[2].in_state_dict = false; };
  for (const int numerics : {3, 2}) {
    const bool is_older = numerics == 2;
    numerics_ = numerics;
    config_.checkpoint_path = folder_ + (is_older ? "/older" : "/newer");
    std::vector<Member> one = members(1, edit);
    const std::vector<StepRecord> records{step(one)};
    const std::string path = one[0].replica->snapshot().value()->save(records, 0).value();
    const auto has_mask = [&](const std::string& name) {
      return Safetensors::open(files_, path + name).value().find("mask") != nullptr;
    };
    EXPECT_EQ(has_mask("/model.safetensors"), is_older);
    EXPECT_EQ(has_mask("/optimizer.safetensors"), !is_older);
    Member other = make(edit);
    ASSERT_TRUE(other.replica->load_checkpoint(1).ok());
    EXPECT_EQ(bytes_of(*other.replica), bytes_of(*one[0].replica));
  }
}

// Rank 0 is lost while it writes the last checkpoint, and another writes it, whose script has left
// its loop and changed its model.
TEST_F(TorchReplicaTest, WhatAScriptDoesBehindItsLoopIsNotInTheLastCheckpoint) {
  std::vector<Member> two = members(2);
  const std::vector<StepRecord> records{step(two)};
  const auto committed = bytes_of(*two[0].replica);
  Replica& replica = *two[1].replica;
  ASSERT_TRUE(replica.keep_apart().ok());
  ASSERT_TRUE(replica.keep_apart().ok());
  two[1].program->has_ended = true;
  two[1].program->weight()[3] = 77;
  EXPECT_EQ(bytes_of(replica), committed) << "what members compare";
  EXPECT_EQ(replica.weight_digest().value(), two[0].replica->weight_digest().value());
  EXPECT_EQ(replica.show().error().code(), Code::kCancelled);
  EXPECT_EQ(replica.compute({}, 0).error().code(), Code::kCancelled);
  ASSERT_TRUE(replica.snapshot().value()->save(records, 0).ok());
  EXPECT_EQ(two[1].program->weight()[3], 77) << "nor does the job write its model";
  Member resumed = make();
  ASSERT_TRUE(resumed.replica->load_checkpoint(1).ok());
  EXPECT_EQ(bytes_of(*resumed.replica), committed);

  // Where the job goes on after all, before a script was told, it does so from that state.
  two[1].program->has_ended = false;
  step(two);
  EXPECT_EQ(bytes_of(replica), bytes_of(*two[0].replica));
  EXPECT_NE(bytes_of(replica), committed);
}

// A job that is over computes no more: the script must see what was loaded all the same.
TEST_F(TorchReplicaTest, TheScriptIsShownWhatWasLoadedWithoutARound) {
  std::vector<Member> one = members(1);
  const std::vector<StepRecord> records{step(one)};
  ASSERT_TRUE(one[0].replica->snapshot().value()->save(records, 0).ok());
  EXPECT_TRUE(one[0].replica->show().ok());
  EXPECT_EQ(one[0].program->loaded_at, 0u) << "it has seen its own steps";

  Member resumed = make();
  ASSERT_TRUE(resumed.replica->load_checkpoint(1).ok());
  EXPECT_EQ(resumed.program->loaded_at, 0u);
  resumed.program->failure = "ValueError: no (train.py:7)";
  EXPECT_EQ(resumed.replica->show().error().reason(), "ProgramFailed");
  resumed.program->failure.clear();
  EXPECT_TRUE(resumed.replica->show().ok());
  EXPECT_EQ(resumed.program->loaded_at, 1u);
  resumed.program->loaded_at = 9;
  EXPECT_TRUE(resumed.replica->show().ok());
  EXPECT_EQ(resumed.program->loaded_at, 9u) << "once is enough";

  resumed.replica->set_step(2);  // as after a state that a donor sent
  EXPECT_TRUE(resumed.replica->show().ok());
  EXPECT_EQ(resumed.program->loaded_at, 2u);
}

TEST_F(TorchReplicaTest, ADamagedCheckpointIsNamed) {
  std::vector<Member> one = members(1);
  const std::vector<StepRecord> records{step(one)};
  const std::string path = one[0].replica->snapshot().value()->save(records, 0).value();
  {
    const auto file = files_.open(path + "/optimizer.safetensors", OpenMode::kUpdate).value();
    const std::byte flipped{0x5a};
    ASSERT_TRUE(file->write_at(400, {&flipped, 1}).ok());
  }
  Member other = make();
  EXPECT_EQ(other.replica->load_checkpoint(1).error().reason(), kCheckpointDamaged);
  EXPECT_TRUE(other.replica->set_aside_checkpoint(1).ok());
  EXPECT_TRUE(other.replica->checkpoints()->empty());
}

TEST_F(TorchReplicaTest, WhatCannotBeTrainedIsRefusedWithBothSides) {
  const auto why = [&](const std::function<void(PlainProgram&)>& edit) {
    return try_make(edit).error();
  };
  const Error batch = why([](PlainProgram& p) { p.setup.micro_batches = 4; });
  EXPECT_EQ(batch.reason(), "BatchMismatch");
  EXPECT_EQ(batch.what(),
            "the script has batches of global 8, micro 2, training.batch says global 10, micro 2");
  EXPECT_EQ(why([](PlainProgram& p) { p.setup.samples = 9; }).reason(), "DataInvalid");
  EXPECT_EQ(why([](PlainProgram& p) { p.setup.tensors[1].name = "weight"; }).what(),
            "tensor weight: two have this name");
  EXPECT_EQ(why([](PlainProgram& p) { p.setup.tensors[0].dtype = "C64"; }).reason(), "BadTraining");
  EXPECT_EQ(why([](PlainProgram& p) { p.setup.tensors[0].shape = {1 << 30, 1 << 30}; }).what(),
            "tensor weight: it is too large");
  config_.evaluate_every = 5;
  EXPECT_EQ(why([](PlainProgram& p) { p.setup.validation_micro_batches = 0; }).reason(),
            "BadTraining");
}

TEST_F(TorchReplicaTest, WhatTheScriptSaysWrongIsAnError) {
  std::vector<Member> one = members(1);
  one[0].program->failure = "ValueError: no (train.py:7)";
  EXPECT_EQ(one[0].replica->compute({}, 0).error().reason(), "ProgramFailed");
  one[0].program->failure.clear();
  one[0].program->scale = std::nan("");
  one[0].replica->clear();
  for (std::uint32_t m = 0; m < 5; ++m) {
    ASSERT_TRUE(one[0].replica->compute({}, m).ok());
    ASSERT_TRUE(one[0].replica->accumulate().ok());
  }
  reduce(one);
  EXPECT_TRUE(one[0].replica->judge(ExactSum::kRedosMax).value().non_finite);
}

}  // namespace
}  // namespace rubato::worker
