// run.json: CheckpointInfo as JSON. 64-bit digests are hexadecimal text, for JSON numbers are not
// safe beyond 2^53 everywhere.
#include "worker/checkpoint/run_info.h"

#include "common/json.h"
#include "worker/backend/digest.h"

namespace rubato::worker {

namespace {

json::Value to_json(const OptimizerConfig& o) {
  return json::Value::object({{"name", "adamw"},
                              {"learningRate", o.learning_rate},
                              {"minLearningRate", o.min_learning_rate},
                              {"warmupSteps", o.warmup_steps},
                              {"decaySteps", o.decay_steps},
                              {"beta1", o.beta1},
                              {"beta2", o.beta2},
                              {"epsilon", o.epsilon},
                              {"weightDecay", o.weight_decay},
                              {"clipNorm", o.clip_norm}});
}

OptimizerConfig optimizer_from(const json::Value& v) {
  OptimizerConfig o;
  o.learning_rate = v["learningRate"].double_or(o.learning_rate);
  o.min_learning_rate = v["minLearningRate"].double_or(o.min_learning_rate);
  o.warmup_steps = v["warmupSteps"].int_or(o.warmup_steps);
  o.decay_steps = v["decaySteps"].int_or(o.decay_steps);
  o.beta1 = v["beta1"].double_or(o.beta1);
  o.beta2 = v["beta2"].double_or(o.beta2);
  o.epsilon = v["epsilon"].double_or(o.epsilon);
  o.weight_decay = v["weightDecay"].double_or(o.weight_decay);
  o.clip_norm = v["clipNorm"].double_or(o.clip_norm);
  return o;
}

}  // namespace

std::string dump_run_info(const CheckpointInfo& info) {
  const json::Value run = json::Value::object({
      {"format", 1},
      {"step", info.step},
      {"sequence", info.sequence},
      {"seed", to_hex(info.seed)},
      {"dataDigest", to_hex(info.data_digest)},
      {"globalBatch", info.global_batch},
      {"microBatch", info.micro_batch},
      {"numericsVersion", info.numerics_version},
      {"fingerprint", info.fingerprint},
      {"stateDigest", to_hex(info.state_digest)},
      {"model", to_huggingface_config(info.model)},
      {"optimizer", to_json(info.optimizer)},
  });
  return json::dump(run, 2) + "\n";
}

Result<CheckpointInfo> parse_run_info(const std::string& text) {
  TRY(const json::Value run, json::parse(text));
  if (run["format"].int_or(0) != 1) return Error(Code::kInvalid, "run.json is not of format 1");
  CheckpointInfo info;
  info.step = run["step"].int_or(-1);
  if (info.step < 0) return Error(Code::kInvalid, "run.json has no step");
  info.sequence = run["sequence"].int_or(0);
  info.seed = from_hex(run["seed"].string_or(""));
  info.data_digest = from_hex(run["dataDigest"].string_or(""));
  info.global_batch = run["globalBatch"].int_or(0);
  info.micro_batch = run["microBatch"].int_or(0);
  info.numerics_version = static_cast<int>(run["numericsVersion"].int_or(0));
  info.fingerprint = run["fingerprint"].string_or("");
  info.state_digest = from_hex(run["stateDigest"].string_or(""));
  TRY(info.model, from_huggingface_config(run["model"]));
  info.optimizer = optimizer_from(run["optimizer"]);
  TRY_OK(info.optimizer.validate());
  return info;
}

}  // namespace rubato::worker
