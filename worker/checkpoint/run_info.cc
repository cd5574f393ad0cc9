// run.json: CheckpointInfo as JSON. 64-bit digests are hexadecimal text, for JSON numbers are not
// safe beyond 2^53 everywhere.
#include "worker/checkpoint/run_info.h"

#include "common/json.h"
#include "worker/backend/digest.h"

#include <utility>
#include <vector>

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

std::string text_of(std::int64_t value) { return std::to_string(value); }
std::string text_of(double value) { return json::dump(json::Value(value)); }

constexpr const char* kDataField = "the data's digest";
constexpr const char* kScriptField = "what the script trains";

// A field that decides the numbers: its name in the job, and its value.
using Fields = std::vector<std::pair<std::string, std::string>>;

Fields fields_before_owners(const CheckpointInfo& info) {
  const OptimizerConfig& o = info.optimizer;
  const ModelConfig& m = info.model;
  return {{"seed", std::to_string(info.seed)},
          {kDataField, to_hex(info.data_digest)},
          {"batch.global", text_of(info.global_batch)},
          {"batch.micro", text_of(info.micro_batch)},
          {"batch.sequenceLength", text_of(m.sequence_length)},
          {"model.family", m.family},
          {"model.layers", text_of(m.layers)},
          {"model.heads", text_of(m.heads)},
          {"model.hidden", text_of(m.hidden)},
          {"model.vocab", text_of(m.vocabulary)},
          {"optimizer.learningRate", text_of(o.learning_rate)},
          {"optimizer.schedule.minLearningRate", text_of(o.min_learning_rate)},
          {"optimizer.schedule.warmupSteps", text_of(o.warmup_steps)},
          {"optimizer.schedule.decaySteps", text_of(o.decay_steps)},
          {"optimizer.betas[0]", text_of(o.beta1)},
          {"optimizer.betas[1]", text_of(o.beta2)},
          {"optimizer.epsilon", text_of(o.epsilon)},
          {"optimizer.weightDecay", text_of(o.weight_decay)},
          {"optimizer.gradientClip", text_of(o.clip_norm)}};
}

Fields fields_of_script(const CheckpointInfo& info) {
  return {{"seed", std::to_string(info.seed)},
          {kDataField, to_hex(info.data_digest)},
          {"batch.global", text_of(info.global_batch)},
          {"batch.micro", text_of(info.micro_batch)},
          {kScriptField, info.script}};
}

Fields fields_of(const CheckpointInfo& info) {
  if (!info.script.empty()) return fields_of_script(info);
  Fields fields = fields_before_owners(info);
  fields.emplace_back("data.validationFraction", text_of(info.validation_fraction));
  fields.emplace_back("model.initFrom", info.init_from);
  const ModelConfig& m = info.model;
  if (m.family != "llama") return fields;
  fields.emplace_back("model.kvHeads", text_of(m.kv_heads));
  fields.emplace_back("model.mlpHidden", text_of(m.mlp_hidden));
  fields.emplace_back("model.ropeTheta", text_of(m.rope_theta));
  fields.emplace_back("model.ropeScaling", json::dump(to_huggingface_config(m)["rope_scaling"]));
  fields.emplace_back("model.normEpsilon", text_of(static_cast<double>(m.norm_epsilon)));
  fields.emplace_back("model.tieEmbeddings", m.has_tied_head ? "true" : "false");
  return fields;
}

// Tokens or samples of its data; "": its fingerprint does not say.
std::string data_count(const CheckpointInfo& info) {
  const std::size_t data = info.fingerprint.find(kDataOfFingerprint);
  const std::size_t comma = data == std::string::npos ? data : info.fingerprint.find(',', data);
  return comma == std::string::npos ? "" : info.fingerprint.substr(comma + 1);
}

std::string difference_of_data(const CheckpointInfo& theirs, const CheckpointInfo& ours) {
  const std::string before = data_count(theirs);
  const std::string now = data_count(ours);
  if (before.empty() || now.empty() || before == now)
    return "its data has the digest " + to_hex(theirs.data_digest) + ", this job's has " +
           to_hex(ours.data_digest);
  const char* unit = ours.script.empty() ? " tokens" : " samples";
  return "its data has " + before + unit + ", this job's has " + now;
}

}  // namespace

namespace {
// Older fingerprints do not name the data.
std::string comparable(const std::string& ours, const std::string& theirs) {
  return theirs.find(kDataOfFingerprint) == std::string::npos
             ? ours.substr(0, ours.find(kDataOfFingerprint))
             : ours;
}
}  // namespace

std::uint64_t training_hash(const CheckpointInfo& info) {
  Digest digest;
  for (const auto& [name, value] : fields_of(info)) digest.add(name).add(value);
  return digest.value();
}

std::string difference(const CheckpointInfo& theirs, const CheckpointInfo& ours) {
  if (theirs.script.empty() != ours.script.empty())
    return ours.script.empty() ? "it is of runtime pytorch, this job is of runtime builtin"
                               : "it is of runtime builtin, this job is of runtime pytorch";
  const bool has_owner = !theirs.job_uid.empty();
  const bool says_all = has_owner || !theirs.script.empty();
  const Fields of_theirs = says_all ? fields_of(theirs) : fields_before_owners(theirs);
  const Fields of_ours = says_all ? fields_of(ours) : fields_before_owners(ours);
  for (std::size_t i = 0; i < of_theirs.size(); ++i) {
    const auto& [name, value] = of_theirs[i];
    const std::string& our_value = of_ours[i].second;
    if (value == our_value) continue;
    if (name == kDataField) return difference_of_data(theirs, ours);
    if (name == kScriptField) return name + " was " + value + ", and is " + our_value;
    return "its " + name + " is " + value + ", this job's is " + our_value;
  }
  if (has_owner && !ours.job_uid.empty() && theirs.job_uid != ours.job_uid)
    return "it belongs to the job with uid " + theirs.job_uid + ", this one's is " + ours.job_uid;
  const std::string arithmetic = comparable(ours.fingerprint, theirs.fingerprint);
  if (!theirs.fingerprint.empty() && !arithmetic.empty() && theirs.fingerprint != arithmetic)
    return "it was computed by " + theirs.fingerprint + ", this worker computes as " + arithmetic;
  return "";
}

std::string dump_run_info(const CheckpointInfo& info,
                          const std::map<std::string, std::uint64_t>& files) {
  json::Value digests = json::Value::object();
  for (const auto& [name, digest] : files) digests.set(name, to_hex(digest));
  json::Value run = json::Value::object({
      {"format", 1},
      {"step", info.step},
      {"sequence", info.sequence},
      {"seed", to_hex(info.seed)},
      {"dataDigest", to_hex(info.data_digest)},
      {"globalBatch", info.global_batch},
      {"microBatch", info.micro_batch},
      {"validationFraction", info.validation_fraction},
      {"numericsVersion", info.numerics_version},
      {"jobUid", info.job_uid},
      {"trainingHash", to_hex(training_hash(info))},
      {"fingerprint", info.fingerprint},
      {"stateDigest", to_hex(info.state_digest)},
      {"redoAttempts", info.redo_attempts},
  });
  if (info.script.empty()) {
    run.set("initFrom", info.init_from);
    run.set("model", to_huggingface_config(info.model));
    run.set("optimizer", to_json(info.optimizer));
  } else {
    run.set("script", info.script);
  }
  run.set("files", digests);
  run.set("digest", kBlankDigest);
  return sealed(json::dump(run, 2) + "\n");
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
  info.job_uid = run["jobUid"].string_or("");
  info.validation_fraction = run["validationFraction"].double_or(0);
  info.init_from = run["initFrom"].string_or("");
  info.redo_attempts = static_cast<std::uint32_t>(run["redoAttempts"].int_or(0));
  info.fingerprint = run["fingerprint"].string_or("");
  info.state_digest = from_hex(run["stateDigest"].string_or(""));
  info.script = run["script"].string_or("");
  if (!info.script.empty()) return info;
  TRY(info.model, from_huggingface_config(run["model"]));
  info.optimizer = optimizer_from(run["optimizer"]);
  TRY_OK(info.optimizer.validate());
  return info;
}

}  // namespace rubato::worker
