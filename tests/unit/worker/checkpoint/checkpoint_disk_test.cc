// Checkpoints on a disk that loses its power, fills up or rots.
#include "common/testing/sim_disk.h"
#include "tests/unit/worker/checkpoint/checkpoint_fixture.h"

#include <algorithm>
#include <map>
#include <set>

namespace rubato::worker::testing {
namespace {

using rubato::testing::SimDisk;
using rubato::testing::SimExecutor;
using rubato::testing::SimVolume;

constexpr const char* kFolder = "/jobs/a/checkpoints";

class CheckpointDiskTest : public CheckpointFixture {
 protected:
  // A job's states after each of its first steps.
  struct History {
    std::vector<std::unique_ptr<SmallJob>> jobs;
    std::vector<std::vector<StepRecord>> records;
  };
  static History history(int steps) {
    History out;
    for (int step = 1; step <= steps; ++step) {
      out.jobs.push_back(std::make_unique<SmallJob>(small_job()));
      out.records.push_back(train(*out.jobs.back(), step));
    }
    return out;
  }
  static Status save(FileSystem& files, History& past, std::size_t step) {
    SmallJob& job = *past.jobs[step - 1];
    return CheckpointStore(files, kFolder, 2)
        .save(*job.device, *job.stream, job.model->table(), job.state, info(job),
              past.records[step - 1]);
  }
  static Result<Checkpoint> load(FileSystem& files, SmallJob& into) {
    return load_checkpoint(files, kFolder, *into.device, *into.stream, into.model->table(),
                           into.state);
  }

  SimExecutor sim_{1};
};

// The power goes at each operation of a save, in several ways. What has a name then is whole and
// was saved, the newest as all others, and there are never fewer.
TEST_F(CheckpointDiskTest, APowerCutAtAnyOperationLeavesWholeCheckpoints) {
  constexpr std::size_t kSaves = 4;  // the last one is cut; two are kept
  History past = history(kSaves);
  SmallJob into = small_job();
  std::map<std::int64_t, std::uint64_t> hashes;
  for (std::size_t step = 1; step <= kSaves; ++step)
    hashes[static_cast<std::int64_t>(step)] = past.jobs[step - 1]->hash();
  std::uint64_t operations = 0;
  std::set<std::int64_t> newest_seen;
  for (std::size_t before = 0; before <= 2; ++before) {  // checkpoints that stand already
    std::uint64_t cut = 0;
    for (bool finished = false; !finished; ++cut) {
      for (std::uint64_t seed = 0; seed < 5; ++seed) {
        SCOPED_TRACE("before " + std::to_string(before) + " cut " + std::to_string(cut) + " seed " +
                     std::to_string(seed));
        SimVolume volume(sim_, mix64(before * 100'000 + cut * 100 + seed));
        SimDisk disk(sim_.process("writer"), "n");
        disk.mount("/", volume);
        for (std::size_t step = kSaves - before; step < kSaves; ++step)
          ASSERT_TRUE(save(disk, past, step).ok());
        operations = 0;
        volume.watch([&](const std::string&) { volume.faults().broken = operations++ >= cut; });
        const bool is_saved = save(disk, past, kSaves).ok();
        finished = operations <= cut;
        volume.watch(nullptr);
        volume.faults().broken = false;
        volume.lose_power();

        const CheckpointFolder folder(disk, kFolder);
        const auto steps = folder.steps().value();
        ASSERT_GE(steps.size(), before);
        ASSERT_TRUE(is_saved || !finished);
        if (is_saved) {
          ASSERT_EQ(steps.back(), static_cast<std::int64_t>(kSaves));
        }
        for (const std::int64_t step : steps) {
          const auto whole = folder.verify(step);
          ASSERT_TRUE(whole.ok()) << whole.error().what();
        }
        if (!steps.empty()) {
          const auto loaded = load(disk, into);
          ASSERT_TRUE(loaded.ok()) << loaded.error().what();
          ASSERT_EQ(into.hash(), hashes.at(steps.back()));
          newest_seen.insert(steps.back());
        }
        ASSERT_TRUE(save(disk, past, kSaves).ok()) << "and the next save goes well";
        ASSERT_EQ(folder.drafts().value().size(), 0u);
      }
    }
    EXPECT_GT(cut, 20u);
  }
  EXPECT_EQ(newest_seen, (std::set<std::int64_t>{3, 4}));
}

// The save after one that failed behind its rename finds the checkpoint there, and does the rest.
TEST_F(CheckpointDiskTest, WhatAFailedSaveHasLeftUndoneIsDoneByTheNext) {
  History past = history(2);
  const std::string folder = kFolder;
  for (const std::string& failing : {"sync " + folder, "open " + folder + "/LATEST.tmp"}) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      SCOPED_TRACE(failing + " seed " + std::to_string(seed));
      SimVolume volume(sim_, seed);
      SimDisk disk(sim_.process("writer"), "n");
      disk.mount("/", volume);
      ASSERT_TRUE(save(disk, past, 1).ok());
      bool is_renamed = false;
      bool has_failed = false;
      volume.watch([&](const std::string& operation) {
        is_renamed = is_renamed || operation.ends_with(" to " + folder + "/step-00000002");
        const bool fails = is_renamed && !has_failed && operation == failing;
        has_failed = has_failed || fails;
        volume.faults().broken = fails;
      });
      EXPECT_FALSE(save(disk, past, 2).ok());
      EXPECT_TRUE(has_failed);
      ASSERT_TRUE(save(disk, past, 2).ok());
      volume.watch(nullptr);
      volume.lose_power();
      EXPECT_EQ(CheckpointFolder(disk, folder).steps().value(), (std::vector<std::int64_t>{1, 2}));
      EXPECT_EQ(read_text(disk, folder + "/LATEST", 64).value(), "step-00000002\n");
    }
  }
}

TEST_F(CheckpointDiskTest, AFlippedBitInAnyFileIsNoticed) {
  History past = history(2);
  SmallJob into = small_job();
  Rng rng(7);
  for (const char* file :
       {"model.safetensors", "optimizer.safetensors", "config.json", "run.json", "steps.bin"}) {
    for (int i = 0; i < 12; ++i) {
      SimVolume volume(sim_, 3);
      SimDisk disk(sim_.process("writer"), "n");
      disk.mount("/", volume);
      for (std::size_t step = 1; step <= 2; ++step) ASSERT_TRUE(save(disk, past, step).ok());
      const std::string path = std::string(kFolder) + "/step-00000002/" + file;
      const std::uint64_t size = disk.stat(path)->size;
      const std::uint64_t at = i == 0 ? 0 : i == 1 ? size - 1 : rng.below(size);
      ASSERT_TRUE(volume.flip_bit(path, at, static_cast<int>(rng.below(8))).ok());
      const CheckpointFolder folder(disk, kFolder);
      const auto verified = folder.verify(2);
      ASSERT_FALSE(verified.ok()) << path << " byte " << at;
      EXPECT_EQ(verified.error().reason(), kCheckpointDamaged);
      const auto loaded = load(disk, into);
      ASSERT_FALSE(loaded.ok()) << path << " byte " << at;
      EXPECT_EQ(loaded.error().code(), Code::kInvalid);
      EXPECT_EQ(loaded.error().reason(), kCheckpointDamaged);
      // The one before is tried in turn.
      EXPECT_EQ(folder.set_aside(2).value(), ".damaged-step-00000002-1");
      ASSERT_TRUE(load(disk, into).ok());
      EXPECT_EQ(into.hash(), past.jobs[0]->hash());
      EXPECT_EQ(read_text(disk, std::string(kFolder) + "/LATEST", 64).value(), "step-00000001\n");
    }
  }
}

TEST_F(CheckpointDiskTest, AMissingFileIsDamageAndADeadDiskIsNot) {
  History past = history(1);
  SmallJob into = small_job();
  SimVolume volume(sim_, 3);
  SimDisk disk(sim_.process("writer"), "n");
  disk.mount("/", volume);
  ASSERT_TRUE(save(disk, past, 1).ok());
  volume.faults().broken = true;
  EXPECT_EQ(load(disk, into).error().code(), Code::kUnavailable);
  EXPECT_EQ(CheckpointFolder(disk, kFolder).steps().error().code(), Code::kUnavailable)
      << "no list is not an empty list";
  EXPECT_EQ(CheckpointFolder(disk, kFolder).verify(1).error().code(), Code::kUnavailable);
  volume.faults().broken = false;
  ASSERT_TRUE(disk.remove_all(std::string(kFolder) + "/step-00000001/steps.bin").ok());
  EXPECT_EQ(load(disk, into).error().reason(), kCheckpointDamaged);
  ASSERT_TRUE(disk.remove_all(std::string(kFolder) + "/step-00000001").ok());
  EXPECT_EQ(load(disk, into).error().code(), Code::kNotFound);
}

TEST_F(CheckpointDiskTest, DamagedOnesAreKeptWithinABound) {
  History past = history(2);
  SimVolume volume(sim_, 3);
  SimDisk disk(sim_.process("writer"), "n");
  disk.mount("/", volume);
  const CheckpointFolder folder(disk, kFolder);
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(save(disk, past, 1).ok());
    ASSERT_TRUE(folder.set_aside(1).ok());
    EXPECT_EQ(folder.set_aside(1).error().code(), Code::kNotFound);
  }
  EXPECT_EQ(folder.damaged().value().size(), kDamagedKept);
  for (std::size_t i = 0; i < 3; ++i) ASSERT_TRUE(save(disk, past, 1 + i % 2).ok());
  EXPECT_EQ(folder.damaged().value().size(), kDamagedKept) << "saves leave them alone";
}

// A full disk leaves what stands; once there is room again, the same save goes well.
TEST_F(CheckpointDiskTest, AFullDiskLeavesTheOldOne) {
  History past = history(2);
  SimVolume volume(sim_, 3);
  SimDisk disk(sim_.process("writer"), "n");
  disk.mount("/", volume);
  ASSERT_TRUE(save(disk, past, 1).ok());
  const std::uint64_t one = volume.used();
  for (std::uint64_t room = 0; room < one; room += one / 7) {
    volume.faults().capacity = one + room;
    EXPECT_EQ(save(disk, past, 2).error().code(), Code::kExhausted);
    EXPECT_EQ(volume.used(), one) << "nothing is left behind";
    EXPECT_TRUE(CheckpointFolder(disk, kFolder).verify(1).ok());
  }
  volume.faults().capacity = 3 * one;
  EXPECT_TRUE(save(disk, past, 2).ok());
}

// Saves that a power cut ended have left their drafts, and an interrupted removal what it removed,
// on a disk that holds no more than one checkpoint beside those that are kept.
TEST_F(CheckpointDiskTest, WhatACrashLeftTakesNoRoomFromTheNextSave) {
  History past = history(4);
  for (const char* cut : {"rename ", "remove "}) {
    SCOPED_TRACE(cut);
    SimVolume volume(sim_, 3);
    SimDisk disk(sim_.process("writer"), "n");
    disk.mount("/", volume);
    ASSERT_TRUE(save(disk, past, 1).ok());
    const std::uint64_t one = volume.used();
    ASSERT_TRUE(save(disk, past, 2).ok());
    volume.watch([&](const std::string& operation) {
      volume.faults().broken = volume.faults().broken || operation.starts_with(cut);
    });
    (void)save(disk, past, 3);
    volume.watch(nullptr);
    volume.faults().broken = false;
    const CheckpointFolder folder(disk, kFolder);
    ASSERT_FALSE(folder.drafts().value().empty());
    volume.faults().capacity = volume.used() + one / 2;
    const Status saved = save(disk, past, 4);
    EXPECT_TRUE(saved.ok()) << saved.error().what();
    EXPECT_TRUE(folder.verify(4).ok());
    EXPECT_TRUE(folder.drafts().value().empty());
  }
}

// A checkpoint of the same step that holds other bytes is kept aside, never lost.
TEST_F(CheckpointDiskTest, ADamagedOneOfTheSameStepIsReplacedAndKept) {
  History past = history(1);
  SimVolume volume(sim_, 3);
  SimDisk disk(sim_.process("writer"), "n");
  disk.mount("/", volume);
  ASSERT_TRUE(save(disk, past, 1).ok());
  ASSERT_TRUE(
      volume.flip_bit(std::string(kFolder) + "/step-00000001/model.safetensors", 900, 3).ok());
  ASSERT_TRUE(save(disk, past, 1).ok());
  const CheckpointFolder folder(disk, kFolder);
  EXPECT_TRUE(folder.verify(1).ok());
  EXPECT_EQ(folder.damaged().value().size(), 1u);
}

// What a damaged run.json says of its job is no word of an owner.
TEST_F(CheckpointDiskTest, ADamagedOneIsNobodysElse) {
  History past = history(2);
  SimVolume volume(sim_, 3);
  SimDisk disk(sim_.process("writer"), "n");
  disk.mount("/", volume);
  ASSERT_TRUE(save(disk, past, 1).ok());
  const std::string path = std::string(kFolder) + "/step-00000001/run.json";
  const std::uint64_t size = disk.stat(path)->size;
  const CheckpointStore store(disk, kFolder, 2);
  for (std::uint64_t at = 0; at < size; ++at) {
    ASSERT_TRUE(volume.flip_bit(path, at, 1).ok());
    EXPECT_TRUE(store.check_owner(info(*past.jobs[0])).ok()) << "byte " << at;
    ASSERT_TRUE(volume.flip_bit(path, at, 1).ok());
  }
}

// ---- Two jobs that begin on one empty path ----

class SharedPathTest : public CheckpointDiskTest {
 protected:
  // One of the two jobs, with a process and a node of its own.
  struct Rival {
    std::unique_ptr<SimDisk> disk;
    SmallJob* job = nullptr;
    const std::vector<StepRecord>* records = nullptr;
    CheckpointInfo info;
    Status save() const {
      return CheckpointStore(*disk, kFolder, 2)
          .save(*job->device, *job->stream, job->model->table(), job->state, info, *records);
    }
  };
  Rival rival(const std::string& uid, SimVolume& volume, std::size_t step) {
    Rival out{std::make_unique<SimDisk>(sim_.process(uid), uid), past_.jobs[step - 1].get(),
              &past_.records[step - 1], info(*past_.jobs[step - 1])};
    out.disk->mount("/", volume);
    out.info.job_uid = uid;
    return out;
  }
  // Whose checkpoints stand: of one job at most, all whole, and nothing was pushed aside.
  static std::string owner(SimDisk& disk) {
    const CheckpointFolder folder(disk, kFolder);
    EXPECT_EQ(folder.damaged().value().size(), 0u);
    const auto steps = folder.steps().value();
    std::set<std::string> owners;
    for (const std::int64_t step : steps) {
      const auto whole = folder.verify(step);
      EXPECT_TRUE(whole.ok()) << whole.error().what();
      if (whole.ok()) owners.insert(whole->job_uid);
    }
    EXPECT_LE(owners.size(), 1u);
    return owners.empty() ? "" : *owners.begin();
  }
  static bool is_refused(const Status& saved) {
    return !saved.ok() && saved.error().reason() == kCheckpointPathTaken;
  }

  History past_ = history(2);
};

// All of one save happens before each operation of the other.
TEST_F(SharedPathTest, WhoIsSecondIsRefusedAndOverwritesNothing) {
  for (const std::size_t other_step : {1, 2}) {
    std::set<std::string> winners;
    std::uint64_t operations = 0;
    for (std::uint64_t at = 0; at <= operations; ++at) {
      SCOPED_TRACE("at " + std::to_string(at) + " the other saves step " +
                   std::to_string(other_step));
      SimVolume volume(sim_, at);
      const Rival a = rival("uid-a", volume, 1);
      const Rival b = rival("uid-b", volume, other_step);
      std::uint64_t seen = 0;
      std::optional<Status> second;
      volume.watch([&](const std::string&) {
        if (second || seen++ != at) return;
        second = ok();  // operations within are not counted
        second = b.save();
      });
      const Status first = a.save();
      volume.watch(nullptr);
      operations = std::max(operations, seen);
      if (!second) second = b.save();
      const std::string stands = owner(*a.disk);
      EXPECT_EQ(stands, second->ok() ? "uid-b" : "uid-a");
      EXPECT_EQ(first.ok(), stands == "uid-a");
      EXPECT_EQ(is_refused(first), stands == "uid-b");
      EXPECT_EQ(is_refused(*second), stands == "uid-a");
      winners.insert(stands);
    }
    EXPECT_GT(operations, 20u);
    EXPECT_EQ(winners.size(), 2u);
  }
}

// Both save at once, operation by operation. Each may have kept the other from it, and both try
// again, a while later.
TEST_F(SharedPathTest, OneOfTwoSavesThatInterleaveOwnsThePath) {
  std::map<std::string, int> wins;
  int overtaken = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SimVolume volume(sim_, seed);
    volume.faults().delay = 1ms;
    volume.faults().jitter = 4ms;
    const std::vector<Rival> rivals = [&] {
      std::vector<Rival> out;
      out.push_back(rival("uid-a", volume, 1));
      out.push_back(rival("uid-b", volume, 1 + seed % 2));
      return out;
    }();
    std::vector<std::optional<Status>> ends(2);
    std::vector<Task> tasks;
    for (std::size_t i = 0; i < 2; ++i) {
      tasks.push_back(sim_.process(rivals[i].info.job_uid).spawn("save", [&, i](const auto&) {
        Rng rng(2 * seed + i);
        Status saved = rivals[i].save();
        while (!saved.ok() && !is_refused(saved)) {
          EXPECT_EQ(saved.error().code(), Code::kUnavailable) << saved.error().what();
          ++overtaken;
          sim_.process(rivals[i].info.job_uid).sleep_for(rng.below(1000) * 1ms);
          saved = rivals[i].save();
        }
        ends[i] = saved;
      }));
    }
    ASSERT_TRUE(sim_.run_until([&] { return ends[0] && ends[1]; }, 1min));
    tasks.clear();
    volume.faults() = {};
    const std::string stands = owner(*rivals[0].disk);
    for (std::size_t i = 0; i < 2; ++i) {
      const bool owns = rivals[i].info.job_uid == stands;
      EXPECT_EQ(ends[i]->ok(), owns);
      EXPECT_EQ(is_refused(*ends[i]), !owns);
    }
    ++wins[stands];
  }
  EXPECT_GT(wins["uid-a"], 20);
  EXPECT_GT(wins["uid-b"], 20);
  EXPECT_EQ(wins[""], 0);
  EXPECT_GT(overtaken, 0) << "they have met";
}

// What a job left half written that is gone is in nobody's way.
TEST_F(SharedPathTest, AnothersCompleteDraftIsRemovedAndNeverHalf) {
  SimVolume volume(sim_, 5);
  const Rival a = rival("uid-a", volume, 1);
  const Rival b = rival("uid-b", volume, 2);
  volume.watch([&](const std::string& operation) {
    volume.faults().broken = volume.faults().broken || operation.starts_with("rename");
  });
  EXPECT_FALSE(b.save().ok());
  volume.watch(nullptr);
  volume.faults().broken = false;
  ASSERT_EQ(CheckpointFolder(*a.disk, kFolder).drafts().value().size(), 1u);
  volume.watch([&](const std::string& operation) {  // its writer can never publish part of it
    if (operation.starts_with("remove ") &&
        operation.find(".draft-step-00000002") != std::string::npos) {
      EXPECT_NE(operation.find('~'), std::string::npos) << operation;
    }
  });
  ASSERT_TRUE(a.save().ok());
  volume.watch(nullptr);
  EXPECT_EQ(owner(*a.disk), "uid-a");
  EXPECT_EQ(CheckpointFolder(*a.disk, kFolder).drafts().value().size(), 0u);
}

}  // namespace
}  // namespace rubato::worker::testing
