#include "worker/pytorch/torch_state.h"

#include "worker/checkpoint/file_writer.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/model/numerics.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace rubato::worker {

namespace {

constexpr const char* kWeightName = "rubato.weight";
constexpr const char* kExponentsName = "rubato.exponents";
constexpr const char* kExtraName = "rubato.extra";
constexpr std::int64_t kTensorAlignment = 64;  // bytes; what vector instructions like
constexpr std::int64_t kElementsMost = std::int64_t{1} << 40;
constexpr int kNumericsOfPlaces = 3;  // from which a tensor's file depends on in_state_dict

struct TypeSize {
  std::string_view name;
  std::size_t bytes;
};
constexpr TypeSize kTypeSizes[] = {{"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
                                   {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U8", 1},   {"BOOL", 1}};

std::size_t size_of_type(std::string_view dtype) {
  const auto* known = std::ranges::find(kTypeSizes, dtype, &TypeSize::name);
  return known == std::end(kTypeSizes) ? 0 : known->bytes;
}

Digest digest_in_pieces(Digest digest, std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  for (std::size_t at = 0; at < bytes.size(); at += kPiece)
    digest.add(bytes.data() + at, std::min(kPiece, bytes.size() - at));
  return digest;
}

// Members of builds before, which may be in a job of older numerics, find all but the optimizer's
// in the model's file only.
bool is_for_model_file(const TorchTensor& tensor, int numerics) {
  const bool is_in_model = tensor.group != TensorGroup::kOptimizer;
  return is_in_model && (tensor.in_state_dict || numerics < kNumericsOfPlaces);
}

// The tensors of a file in the order of the layout, that of the optimizer's with what is no tensor.
struct StateTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::span<std::byte> bytes;
};
std::vector<StateTensor> tensors_of(const TorchLayout& layout, const TorchState& state,
                                    bool of_model, int numerics) {
  std::vector<StateTensor> all;
  const auto& tensors = layout.setup().tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (is_for_model_file(tensors[i], numerics) == of_model)
      all.push_back({tensors[i].name,
                     tensors[i].dtype,
                     tensors[i].shape,
                     {state.tensor(layout.offsets()[i]), tensors[i].bytes()}});
  if (of_model) return all;
  const auto sections = state.bytes();
  const auto exponents = static_cast<std::int64_t>(sections[1].size() / sizeof(std::int32_t));
  all.push_back({kExponentsName, "I32", {exponents}, sections[1]});
  const auto extra = static_cast<std::int64_t>(sections[2].size());
  all.push_back({kExtraName, "U8", {extra}, sections[2]});
  return all;
}

Result<std::uint64_t> write_tensor_file(FileSystem& files, const std::string& path,
                                        const std::vector<StateTensor>& all,
                                        const std::map<std::string, std::string>& metadata) {
  std::vector<TensorView> views;
  views.reserve(all.size());
  for (const StateTensor& tensor : all)
    views.push_back(
        {tensor.name, tensor.dtype, tensor.shape, tensor.bytes.data(), tensor.bytes.size()});
  return write_safetensors(files, path, views, metadata);
}

// From the file that they belong into, or else the other one.
Status read_tensors(const Safetensors& file, const Safetensors& other, const std::string& path,
                    const std::vector<StateTensor>& all) {
  for (const StateTensor& tensor : all) {
    const Safetensors& holder = file.find(tensor.name) != nullptr ? file : other;
    const TensorEntry* found = holder.find(tensor.name);
    if (found == nullptr) return Error(Code::kInvalid, path + " has no tensor " + tensor.name);
    if (found->dtype != tensor.dtype || found->shape != tensor.shape)
      return Error(Code::kInvalid, path + ": tensor " + tensor.name +
                                       " has another type or shape than the script's");
    TRY_OK(holder.read(*found, tensor.bytes));
  }
  return ok();
}

}  // namespace

std::int64_t TorchTensor::count() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    if (size < 0 || (size > 0 && count > kElementsMost / size)) return -1;
    count *= size;
  }
  return count;
}

std::size_t TorchTensor::bytes() const {
  return static_cast<std::size_t>(std::max<std::int64_t>(count(), 0)) * size_of_type(dtype);
}

Result<TorchLayout> TorchLayout::create(TorchSetup setup) {
  TorchLayout layout;
  std::set<std::pair<bool, std::string>> names;
  for (const TorchTensor& tensor : setup.tensors) {
    const auto bad = [&](const std::string& why) {
      return Error(Code::kInvalid, fmt::format("tensor {}: {}", tensor.name, why));
    };
    if (size_of_type(tensor.dtype) == 0)
      return bad("type " + tensor.dtype + " is not known; real and whole numbers are");
    if (tensor.count() < 0) return bad("it is too large");
    if (tensor.group == TensorGroup::kTrained && tensor.dtype[0] != 'F' && tensor.dtype != "BF16")
      return bad("type " + tensor.dtype + " cannot be trained");
    if (!names.emplace(is_for_model_file(tensor, kNumericsVersion), tensor.name).second)
      return bad("two have this name");
    layout.offsets_.push_back(layout.tensor_bytes_);
    layout.tensor_bytes_ += (static_cast<std::int64_t>(tensor.bytes()) + kTensorAlignment - 1) /
                            kTensorAlignment * kTensorAlignment;
    if (tensor.group != TensorGroup::kOptimizer) layout.model_bytes_ = layout.tensor_bytes_;
    if (tensor.group == TensorGroup::kTrained && tensor.count() > 0)
      layout.table_.add(tensor.name, {tensor.count()}, false);
  }
  if (layout.table_.entries().empty())
    return Error(Code::kInvalid, "the model has no parameter that is trained");
  layout.weight_offset_ = layout.table_.add(kWeightName, {1}, false).offset;
  layout.setup_ = std::move(setup);
  return layout;
}

std::uint64_t TorchLayout::digest() const {
  Digest digest;
  for (const TorchTensor& tensor : setup_.tensors) {
    digest.add(tensor.name).add(tensor.dtype).add_u64(tensor.shape.size());
    for (const std::int64_t size : tensor.shape) digest.add_u64(static_cast<std::uint64_t>(size));
  }
  return digest.value();
}

Result<TorchState> TorchState::create(Device& device, const TorchLayout& layout) {
  TorchState state;
  const std::int64_t blocks = layout.table().block_count();
  const auto extra = static_cast<std::int64_t>(layout.setup().extra_bytes);
  TRY(state.arena_,
      device.allocate(Arena::bytes_for(DType::kU8, layout.tensor_bytes()) +
                      Arena::bytes_for(DType::kI32, blocks) + Arena::bytes_for(DType::kU8, extra)));
  state.tensors_ = state.arena_.take(DType::kU8, layout.tensor_bytes());
  state.exponents_ = state.arena_.take(DType::kI32, blocks);
  state.extra_ = state.arena_.take(DType::kU8, extra);
  state.host_tensors_ = static_cast<std::byte*>(device.host_view(state.tensors_));
  state.host_exponents_ = static_cast<std::byte*>(device.host_view(state.exponents_));
  state.host_extra_ = static_cast<std::byte*>(device.host_view(state.extra_));
  if (state.host_tensors_ == nullptr || state.host_exponents_ == nullptr)
    return Error(Code::kInvalid,
                 "runtime pytorch computes on processors only, not on " + device.name())
        .set_reason("DeviceUnavailable");
  return state;
}

std::vector<std::span<std::byte>> TorchState::bytes() const {
  return {{host_tensors_, tensors_.bytes()},
          {host_exponents_, exponents_.bytes()},
          {host_extra_, extra_.bytes()}};
}

std::uint64_t TorchState::digest() const {
  Digest digest;
  digest.add_u64(step_);
  for (const auto section : bytes()) digest = digest_in_pieces(digest, section);
  return digest.value();
}

std::uint64_t TorchState::weight_digest(const TorchLayout& layout) const {
  const auto bytes = static_cast<std::size_t>(layout.model_bytes());
  return digest_in_pieces(Digest(), {host_tensors_, bytes}).value();
}

void TorchState::copy_from(const TorchState& other) {
  std::memcpy(host_tensors_, other.host_tensors_, tensors_.bytes());
  std::memcpy(host_exponents_, other.host_exponents_, exponents_.bytes());
  if (extra_.bytes() > 0) std::memcpy(host_extra_, other.host_extra_, extra_.bytes());
  step_ = other.step_;
}

Result<FileDigests> write_torch_state(FileSystem& files, const std::string& directory,
                                      const TorchLayout& layout, const TorchState& state,
                                      int numerics) {
  FileDigests digests;
  TRY(digests["model.safetensors"],
      write_tensor_file(files, directory + "/model.safetensors",
                        tensors_of(layout, state, true, numerics), {{"format", "pt"}}));
  TRY(digests["optimizer.safetensors"],
      write_tensor_file(files, directory + "/optimizer.safetensors",
                        tensors_of(layout, state, false, numerics), {}));
  if (const std::string& config = layout.setup().model_config; !config.empty()) {
    TRY(digests["config.json"],
        write_file(files, directory + "/config.json", config.data(), config.size()));
  }
  return digests;
}

Result<Checkpoint> load_torch_state(FileSystem& files, const std::string& path,
                                    const TorchLayout& layout, TorchState& state) {
  TRY(Checkpoint checkpoint, verify_checkpoint(files, path));
  TRY(const Safetensors model, Safetensors::open(files, path + "/model.safetensors"));
  TRY(const Safetensors optimizer, Safetensors::open(files, path + "/optimizer.safetensors"));
  const int numerics = checkpoint.info.numerics_version;
  TRY_OK(read_tensors(model, optimizer, path, tensors_of(layout, state, true, numerics)));
  TRY_OK(read_tensors(optimizer, model, path, tensors_of(layout, state, false, numerics)));
  state.set_step(static_cast<std::uint64_t>(checkpoint.info.step));
  if (state.digest() != checkpoint.info.state_digest)
    return damaged_checkpoint(path, "its state has not the digest in run.json");
  return checkpoint;
}

}  // namespace rubato::worker
