#include "worker/checkpoint/checkpoint.h"

#include "common/json.h"
#include "tests/unit/worker/checkpoint/checkpoint_fixture.h"
#include "tests/unit/worker/support/troubled_files.h"

#include <filesystem>
#include <fstream>
#include <functional>

#include <unistd.h>

namespace rubato::worker::testing {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public CheckpointFixture {
 protected:
  CheckpointTest() {
    char path[] = "/tmp/rubato-ckpt-XXXXXX";
    folder = mkdtemp(path);
  }
  ~CheckpointTest() override { fs::remove_all(folder); }

  static SmallJob job() { return small_job(); }
  Status save(SmallJob& job, const std::vector<StepRecord>& records, int keep = 2) {
    return save_as(job, records, info(job), keep);
  }
  Status save_as(SmallJob& job, const std::vector<StepRecord>& records, const CheckpointInfo& info,
                 int keep = 2) {
    return CheckpointStore(files, folder, keep)
        .save(*job.device, *job.stream, job.model->table(), job.state, info, records);
  }
  Status save_on(FileSystem& on, SmallJob& job, const std::vector<StepRecord>& records, int keep) {
    return CheckpointStore(on, folder, keep)
        .save(*job.device, *job.stream, job.model->table(), job.state, info(job), records);
  }
  Result<Checkpoint> load(SmallJob& job) {
    return load_checkpoint(files, folder, *job.device, *job.stream, job.model->table(), job.state);
  }

  static bool flip_last_byte(const std::string& path) {  // the last byte
    std::fstream damage(path, std::ios::in | std::ios::out | std::ios::binary);
    damage.seekg(-1, std::ios::end);
    const char was = static_cast<char>(damage.get());
    damage.seekp(-1, std::ios::end);
    damage.put(static_cast<char>(was ^ 4));
    return damage.good();
  }

  PosixFileSystem files;
  std::string folder;
};

TEST_F(CheckpointTest, AResumedRunGoesOnWithTheSameBits) {
  SmallJob whole = job();
  const auto all = train(whole, 6);

  SmallJob first = job();
  const auto half = train(first, 3);
  ASSERT_TRUE(save(first, half).ok());

  SmallJob second = job();
  const auto checkpoint = load(second);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().to_string();
  EXPECT_EQ(checkpoint->info.step, 3);
  EXPECT_EQ(checkpoint->info.seed, 0xFEDCBA9876543210);
  EXPECT_EQ(checkpoint->info.model, second.model->config());
  EXPECT_EQ(checkpoint->info.optimizer, OptimizerConfig{.learning_rate = 1e-3});
  EXPECT_EQ(checkpoint->records, half);
  EXPECT_EQ(second.hash(), first.hash());
  EXPECT_EQ(train(second, 3, checkpoint->records), all);
  EXPECT_EQ(second.hash(), whole.hash());
}

TEST_F(CheckpointTest, KeepsTheNewest) {
  SmallJob small = job();
  std::vector<StepRecord> records;
  for (int i = 0; i < 4; ++i) {
    records = train(small, 1, records);
    ASSERT_TRUE(save(small, records).ok());
  }
  ASSERT_TRUE(save(small, records).ok()) << "the same step again";
  const CheckpointStore store(files, folder, 2);
  EXPECT_EQ(store.folder().steps().value(), (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(store.latest().value(), folder + "/step-00000004");
  for (const auto& entry : fs::directory_iterator(folder))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
}

// A file that another client of the volume holds open, say: the new checkpoint stands all the same.
TEST_F(CheckpointTest, OldOnesThatCannotBeRemovedFailNoSave) {
  for (const Code code : {Code::kUnavailable, Code::kAlreadyExists}) {
    fs::remove_all(folder);
    TroubledFiles troubled(files);
    int refused = 0;
    troubled.on_remove = [&](const std::string& path) -> Status {
      if (path.find("-old") == std::string::npos || !fs::exists(path)) return ok();
      ++refused;
      return Error(code, "removing " + path);
    };
    SmallJob small = job();
    std::vector<StepRecord> records;
    for (int i = 0; i < 3; ++i) {
      records = train(small, 1, records);
      const Status saved = save_on(troubled, small, records, 1);
      ASSERT_TRUE(saved.ok()) << saved.error().what();
    }
    EXPECT_GT(refused, 0);
    const CheckpointStore store(troubled, folder, 1);
    EXPECT_EQ(store.latest().value(), folder + "/step-00000003");
    EXPECT_EQ(store.folder().steps().value(), (std::vector<std::int64_t>{3}));
  }
}

TEST_F(CheckpointTest, AnOldOneThatCannotBeReadIsInNobodysWay) {
  SmallJob small = job();
  std::vector<StepRecord> records;
  TroubledFiles troubled(files);
  Code trouble = Code::kUnavailable;
  troubled.on_open = [&](const std::string& path) -> Status {
    if (!path.ends_with("step-00000001/run.json")) return ok();
    return Error(trouble, "reading " + path);
  };
  const CheckpointStore store(troubled, folder, 3);
  records = train(small, 1, records);
  ASSERT_TRUE(save(small, records, 3).ok());
  for (const Code code : {Code::kUnavailable, Code::kDenied}) {
    trouble = code;
    EXPECT_EQ(store.check_owner(info(small)).error().code(), code) << "nobody knows whose it is";
  }
  records = train(small, 1, records);
  ASSERT_TRUE(save(small, records, 3).ok());
  const std::uint64_t hash = small.hash();
  records = train(small, 1, records);
  EXPECT_TRUE(save_on(troubled, small, records, 3).ok());
  EXPECT_TRUE(store.check_owner(info(small)).ok());
  SmallJob other = job();
  EXPECT_TRUE(load_checkpoint(troubled, folder + "/step-00000002", *other.device, *other.stream,
                              other.model->table(), other.state)
                  .ok());
  EXPECT_EQ(other.hash(), hash);
}

// With `keep: 1` another writer publishes one and removes the one before: there is never none.
TEST_F(CheckpointTest, OneThatGoesWhileTheyAreListedHasASuccessor) {
  const auto path = [&](std::int64_t step) {
    return CheckpointFolder(files, folder).path_of(step);
  };
  std::int64_t step = 500;
  fs::create_directories(path(step));
  fs::create_directory_symlink(folder + "/gone", path(501));  // whatever else leads nowhere
  TroubledFiles troubled(files);
  int moves = 1;
  troubled.on_stat = [&](const std::string& asked) {
    if (asked != path(step) || moves-- <= 0) return ok();
    fs::rename(path(step), path(step + 100));
    step += 100;
    return ok();
  };
  const CheckpointFolder moving(troubled, folder);
  EXPECT_EQ(moving.steps().value(), (std::vector<std::int64_t>{600}));
  moves = 1'000'000;
  EXPECT_EQ(moving.steps().error().code(), Code::kUnavailable);
}

// A copy under a short name, a link whose place is gone: they are no checkpoints, and none goes for
// them.
TEST_F(CheckpointTest, WhatHasNotTheNameOfACheckpointIsNone) {
  for (const char* name : {"step-9000000000000000000", "step-9999999999999999999", "step-",
                           "step-900", "step-000000900"})
    fs::create_directories(folder + "/" + name);
  fs::create_directory_symlink(folder + "/gone", folder + "/step-00000901");
  std::ofstream(folder + "/step-00000902") << "a file";
  fs::create_directory_symlink("step-00000903", folder + "/step-00000903");
  EXPECT_EQ(CheckpointFolder(files, folder).steps().value(), std::vector<std::int64_t>());
  SmallJob small = job();
  auto records = train(small, 1);
  ASSERT_TRUE(save(small, records, 1).ok());
  records = train(small, 1, records);
  ASSERT_TRUE(save(small, records, 1).ok());
  EXPECT_EQ(CheckpointFolder(files, folder).steps().value(), (std::vector<std::int64_t>{2}));
  EXPECT_EQ(read_text(files, folder + "/LATEST", 64).value(), "step-00000002\n");
  SmallJob other = job();
  EXPECT_TRUE(load(other).ok());
}

// An empty one that somebody made is newer than all, and takes the place of none.
TEST_F(CheckpointTest, ASaveNeverRemovesItsOwn) {
  fs::create_directories(folder + "/step-00000900");
  SmallJob small = job();
  std::vector<StepRecord> records;
  for (std::int64_t step = 1; step <= 2; ++step) {
    records = train(small, 1, records);
    ASSERT_TRUE(save(small, records, 1).ok());
    EXPECT_EQ(CheckpointFolder(files, folder).steps().value(),
              (std::vector<std::int64_t>{step, 900}));
  }
  EXPECT_TRUE(CheckpointFolder(files, folder).verify(2).ok());
}

TEST_F(CheckpointTest, AnInterruptedSaveLeavesTheOldOne) {
  SmallJob small = job();
  auto records = train(small, 1);
  ASSERT_TRUE(save(small, records).ok());
  const std::string left = folder + "/.draft-step-00000002-x7Gh2k";  // what a crash leaves
  fs::create_directories(left + "/checkpoint");
  std::ofstream(left + "/checkpoint/model.safetensors") << "half";
  EXPECT_EQ(CheckpointFolder(files, folder).steps().value(), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(read_checkpoint_info(files, folder)->step, 1);
  records = train(small, 1, records);
  ASSERT_TRUE(save(small, records).ok());
  EXPECT_EQ(read_checkpoint_info(files, folder)->step, 2);
  EXPECT_FALSE(fs::exists(left));
}

// It froze while it wrote; others went on, and are writing when it comes back.
TEST_F(CheckpointTest, ALateWriterDoesNoHarm) {
  SmallJob frozen = job();
  const auto old_records = train(frozen, 1);
  SmallJob small = job();
  std::vector<StepRecord> records = train(small, 1);
  for (int i = 0; i < 2; ++i) {
    records = train(small, 1, records);
    ASSERT_TRUE(save(small, records).ok());
  }
  const std::string draft = folder + "/.draft-step-00000004-x7Gh2k";
  fs::create_directories(draft + "/checkpoint");
  ASSERT_TRUE(save(frozen, old_records).ok());
  const CheckpointStore store(files, folder, 2);
  EXPECT_EQ(store.folder().steps().value(), (std::vector<std::int64_t>{1, 2, 3}));
  EXPECT_EQ(store.latest().value(), folder + "/step-00000003");
  EXPECT_EQ(read_text(files, folder + "/LATEST", 64).value(), "step-00000003\n");
  EXPECT_TRUE(fs::exists(draft + "/checkpoint"));
  records = train(small, 1, records);
  ASSERT_TRUE(save(small, records).ok());
  EXPECT_EQ(store.folder().steps().value(), (std::vector<std::int64_t>{3, 4})) << "its went, too";
}

TEST_F(CheckpointTest, DamageIsNoticed) {
  SmallJob small = job();
  ASSERT_TRUE(save(small, train(small, 1)).ok());
  const std::string file = folder + "/step-00000001/optimizer.safetensors";
  std::fstream damage(file, std::ios::in | std::ios::out | std::ios::binary);
  damage.seekp(-2000, std::ios::end);
  damage.put('\x55');
  damage.close();
  SmallJob other = job();
  const auto result = load(other);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code(), Code::kInvalid);
  EXPECT_NE(result.error().what().find("damaged"), std::string::npos);
  EXPECT_EQ(read_checkpoint_info(files, "/nowhere").error().code(), Code::kNotFound);
}

// Whoever wants the weights alone is not given damaged ones, wherever the checkpoint stands.
TEST_F(CheckpointTest, WeightsAreComparedWithWhatWasWritten) {
  SmallJob small = job();
  ASSERT_TRUE(save(small, train(small, 1)).ok());
  const std::string whole = folder + "/step-00000001";
  const std::string copy = folder + "/copy";
  fs::copy(whole, copy);
  for (const std::string& path : {folder, whole}) EXPECT_EQ(weights_at(files, path).value(), whole);
  EXPECT_EQ(weights_at(files, copy).value(), copy);
  EXPECT_EQ(weights_at(files, "/models/gpt2").value(), "/models/gpt2") << "not a checkpoint";
  // One that the disk does not show now is no other folder, whose weights nobody compares.
  const Error unanswered(Code::kUnavailable, "EIO");
  TroubledFiles troubled(files);
  troubled.on_stat = [&](const std::string& at) {
    return at.ends_with("/run.json") ? Status(unanswered) : ok();
  };
  for (const std::string& path : {folder, whole, copy})
    EXPECT_EQ(weights_at(troubled, path).error().code(), Code::kUnavailable) << path;
  EXPECT_EQ(read_checkpoint_info(troubled, whole).error().code(), Code::kUnavailable);
  troubled.on_stat = [](const std::string&) { return ok(); };
  troubled.on_list = [&](const std::string&) { return Status(unanswered); };
  EXPECT_EQ(weights_at(troubled, folder).error().code(), Code::kUnavailable);
  for (const std::string& path : {whole, copy}) {
    std::fstream damage(path + "/model.safetensors",
                        std::ios::in | std::ios::out | std::ios::binary);
    damage.seekp(-8, std::ios::end);
    damage.write("\x7f\x7f\x7f\x7f", 4);
  }
  for (const std::string& path : {folder, whole, copy}) {
    const auto weights = weights_at(files, path);
    ASSERT_FALSE(weights.ok()) << path;
    EXPECT_EQ(weights.error().reason(), kCheckpointDamaged);
    EXPECT_NE(weights.error().what().find("is damaged: model.safetensors"), std::string::npos);
    EXPECT_NE(weights.error().what().find("rubatoctl checkpoint verify " + folder),
              std::string::npos);
  }
}

TEST_F(CheckpointTest, AnotherModelIsRefused) {
  SmallJob small = job();
  ASSERT_TRUE(save(small, train(small, 1)).ok());
  ModelConfig wider = tiny_config();
  wider.hidden = 64;
  SmallJob other(wider, 2, 2, {});
  EXPECT_EQ(load(other).error().code(), Code::kInvalid);
}

// ---- Owners ----

TEST_F(CheckpointTest, AnotherJobsPathIsRefusedBeforeAnythingIsOverwritten) {
  SmallJob first = job();
  const auto records = train(first, 1);
  CheckpointInfo owner = info(first);
  owner.job_uid = "uid-a";
  ASSERT_TRUE(save_as(first, records, owner).ok());

  SmallJob second = job();
  const auto more = train(second, 2);
  CheckpointInfo other = owner;
  other.job_uid = "uid-b";
  const Status refused = save_as(second, more, other);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), Code::kConflict);
  EXPECT_EQ(refused.error().reason(), kCheckpointPathTaken);
  for (const char* word : {"uid-a", "uid-b", "training.checkpoint.path", "initFrom",
                           "rubatoctl checkpoint prune", "step-00000001"})
    EXPECT_NE(refused.error().what().find(word), std::string::npos) << word;
  for (const char* words : {"prune --keep 0 ", "rubatoctl checkpoint release "})
    EXPECT_NE(refused.error().what().find(words + folder), std::string::npos) << words;
  EXPECT_EQ(CheckpointFolder(files, folder).steps().value(), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(CheckpointFolder(files, folder).drafts().value().size(), 0u);

  // A script has no initFrom, and one that trains alone no manifest, pod or rubatoctl.
  CheckpointInfo script = other;
  script.script = "4 tensors, 1";
  const auto told = [&](const CheckpointInfo& ours) {
    return CheckpointStore(files, folder, 2).check_owner(ours).error().what();
  };
  EXPECT_EQ(told(script).find("initFrom"), std::string::npos) << told(script);
  EXPECT_NE(told(script).find("training.checkpoint.path"), std::string::npos) << told(script);
  script.job_uid.clear();
  EXPECT_TRUE(
      told(script).ends_with("Give Job(checkpoint=), or output_dir of RubatoTrainer, a "
                             "folder of its own, or remove " +
                             folder))
      << told(script);
  for (const char* word : {"training.", "the pod", "rubatoctl"})
    EXPECT_EQ(told(script).find(word), std::string::npos) << word;

  // Handed over, they are the next job's.
  ASSERT_TRUE(CheckpointFolder(files, folder).release(1).ok());
  EXPECT_TRUE(CheckpointFolder(files, folder).verify(1).ok());
  EXPECT_TRUE(save_as(second, more, other).ok());
  EXPECT_EQ(CheckpointStore(files, folder, 2).check_owner(owner).error().reason(),
            kCheckpointPathTaken);
}

// Whatever decides the numbers keeps a checkpoint from being gone on from, and is named.
TEST_F(CheckpointTest, WhatDecidesTheLineageIsCompared) {
  SmallJob small = job();
  CheckpointInfo ours = info(small);
  ours.job_uid = "uid-a";
  ours.fingerprint = "1-cpu/data=5,100";
  ours.validation_fraction = 0.1;
  EXPECT_EQ(difference(ours, ours), "");
  const auto differs = [&](const std::string& word, auto change) {
    CheckpointInfo theirs = ours;
    change(theirs);
    EXPECT_NE(difference(theirs, ours).find(word), std::string::npos)
        << word << ": " << difference(theirs, ours);
    const bool is_training =
        word.find("uid") == std::string::npos && word.find("computed") == std::string::npos;
    EXPECT_EQ(training_hash(theirs) != training_hash(ours), is_training) << word;
  };
  differs("seed", [](CheckpointInfo& i) { i.seed = 1; });
  differs("data", [](CheckpointInfo& i) { i.data_digest = 1; });
  differs("batch.global", [](CheckpointInfo& i) { i.global_batch = 8; });
  differs("batch.micro", [](CheckpointInfo& i) { i.micro_batch = 1; });
  differs("model.hidden", [](CheckpointInfo& i) { i.model.hidden = 64; });
  differs("optimizer.learningRate", [](CheckpointInfo& i) { i.optimizer.learning_rate = 2e-3; });
  differs("optimizer.weightDecay", [](CheckpointInfo& i) { i.optimizer.weight_decay = 0.2; });
  differs("optimizer.betas[1]", [](CheckpointInfo& i) { i.optimizer.beta2 = 0.99; });
  differs("decaySteps", [](CheckpointInfo& i) { i.optimizer.decay_steps = 7; });
  differs("validationFraction", [](CheckpointInfo& i) { i.validation_fraction = 0.2; });
  differs("initFrom", [](CheckpointInfo& i) { i.init_from = "/m"; });
  differs("uid", [](CheckpointInfo& i) { i.job_uid = "uid-b"; });
  differs("computed by", [](CheckpointInfo& i) { i.fingerprint = "1-cpu/data=6,100"; });
  differs("computed by", [](CheckpointInfo& i) { i.fingerprint = "2-cpu/data=5,100"; });

  const auto of_data = [&](std::uint64_t digest, const std::string& count) {
    CheckpointInfo theirs = ours;
    theirs.data_digest = digest;
    theirs.fingerprint = "1-cpu/data=6," + count;
    return difference(theirs, ours);
  };
  EXPECT_EQ(of_data(1, "99"), "its data has 99 tokens, this job's has 100");
  EXPECT_EQ(of_data(1, "100").find("its data has the digest 0000000000000001, this job's has "), 0u)
      << of_data(1, "100");

  // Written before there were owners: ours when what it says agrees.
  CheckpointInfo older = ours;
  older.job_uid = "";
  older.fingerprint = "1-cpu";
  older.validation_fraction = 0;
  EXPECT_EQ(difference(older, ours), "");
  older.optimizer.learning_rate = 2e-3;
  EXPECT_NE(difference(older, ours), "");
}

TEST_F(CheckpointTest, RunJsonKeepsAllOfIt) {
  SmallJob small = job();
  const auto records = train(small, 1);
  CheckpointInfo written = info(small);
  written.job_uid = "uid-a";
  written.redo_attempts = 2;
  written.validation_fraction = 0.05;
  written.init_from = "/weights";
  ASSERT_TRUE(save_as(small, records, written).ok());
  const CheckpointInfo read = read_checkpoint_info(files, folder).value();
  EXPECT_EQ(read.job_uid, "uid-a");
  EXPECT_EQ(read.redo_attempts, 2u);
  EXPECT_EQ(read.validation_fraction, 0.05);
  EXPECT_EQ(read.init_from, "/weights");
  EXPECT_EQ(difference(read, written), "");
  const CheckpointSummary summary = CheckpointFolder(files, folder).verify(1).value();
  EXPECT_EQ(summary.job_uid, "uid-a");
  EXPECT_EQ(summary.state_digest, read.state_digest);
  EXPECT_EQ(summary.files.size(), 4u);
}

// run.json as an older version wrote it: no owner, no digests.
TEST_F(CheckpointTest, OlderCheckpointsAreReadAndAdopted) {
  SmallJob small = job();
  const auto records = train(small, 1);
  ASSERT_TRUE(save(small, records).ok());
  const std::string file = folder + "/step-00000001/run.json";
  json::Value run = json::parse(read_text(files, file, 1 << 20).value()).value();
  for (const char* member : {"files", "digest", "jobUid", "trainingHash", "redoAttempts",
                             "validationFraction", "initFrom"})
    run.erase(member);
  ASSERT_TRUE(replace_file(files, file, json::dump(run, 2) + "\n").ok());
  SmallJob other = job();
  ASSERT_TRUE(load(other).ok());
  EXPECT_EQ(other.hash(), small.hash());
  CheckpointInfo adopting = info(small);
  adopting.job_uid = "uid-a";
  EXPECT_TRUE(CheckpointStore(files, folder, 2).check_owner(adopting).ok());
  ASSERT_TRUE(flip_last_byte(folder + "/step-00000001/model.safetensors"));
  EXPECT_EQ(load(other).error().reason(), kCheckpointDamaged) << "by the digest of its state";
}

// No version has written an owner without a digest: whose it is is not known.
TEST_F(CheckpointTest, AnOwnerWithoutADigestIsDamage) {
  SmallJob small = job();
  CheckpointInfo owned = info(small);
  owned.job_uid = "uid-a";
  ASSERT_TRUE(save_as(small, train(small, 1), owned).ok());
  const std::string file = folder + "/step-00000001/run.json";
  json::Value run = json::parse(read_text(files, file, 1 << 20).value()).value();
  for (const char* member : {"files", "digest"}) run.erase(member);
  ASSERT_TRUE(replace_file(files, file, json::dump(run, 2) + "\n").ok());
  const CheckpointFolder those(files, folder);
  for (const Status& said :
       {those.release(1), those.inspect(1).ok() ? ok() : Status(those.inspect(1).error())}) {
    ASSERT_FALSE(said.ok());
    EXPECT_EQ(said.error().reason(), kCheckpointDamaged);
    EXPECT_NE(said.error().what().find("run.json"), std::string::npos);
  }
}

// Another attempt at the same step holds other exponents, and is as good.
TEST_F(CheckpointTest, AnotherAttemptAtTheStepLeavesTheFirst) {
  SmallJob small = job();
  const auto records = train(small, 1);
  ASSERT_TRUE(save(small, records).ok());
  const std::uint64_t first = read_checkpoint_info(files, folder)->state_digest;
  small.device->memset(*small.stream, small.state.exponents(), 1);
  CheckpointInfo again = info(small);
  again.redo_attempts = 1;
  ASSERT_TRUE(save_as(small, records, again).ok());
  EXPECT_EQ(read_checkpoint_info(files, folder)->state_digest, first);
  EXPECT_EQ(CheckpointFolder(files, folder).damaged().value().size(), 0u);
  again.redo_attempts = 0;  // the same attempt with another state: one of them is wrong
  ASSERT_TRUE(save_as(small, records, again).ok());
  EXPECT_NE(read_checkpoint_info(files, folder)->state_digest, first);
  EXPECT_EQ(CheckpointFolder(files, folder).damaged().value().size(), 1u);
}

}  // namespace
}  // namespace rubato::worker::testing
