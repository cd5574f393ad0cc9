#include "tests/sim/other_build.h"

#include <algorithm>
#include <array>
#include <utility>

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

namespace rubato::sim {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr int kUnknownField = 1000;  // no message has so many
constexpr std::uint32_t kNextVersion = 2;
constexpr std::uint32_t kForeignVersion = 1000;

void add_unknown(Message& message) {
  auto& unknown = *message.GetReflection()->MutableUnknownFields(&message);
  unknown.AddVarint(kUnknownField, 7);
  unknown.AddLengthDelimited(kUnknownField + 1)->assign("of a later build");
}

// In the message and in all that it contains.
void add_unknown_throughout(Message& message) {
  add_unknown(message);
  const auto& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      add_unknown_throughout(*reflection.MutableMessage(&message, field));
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i)
      add_unknown_throughout(*reflection.MutableRepeatedMessage(&message, field, i));
  }
}

// Fields that this build may not have yet are named, not called.
template <std::size_t N>
void clear(Message& message, const std::array<const char*, N>& names) {
  for (const char* name : names)
    if (const FieldDescriptor* field = message.GetDescriptor()->FindFieldByName(name))
      message.GetReflection()->ClearField(&message, field);
}

class OldCommunicator : public worker::Communicator {
 public:
  explicit OldCommunicator(std::unique_ptr<worker::Communicator> inner)
      : inner_(std::move(inner)) {}
  std::uint64_t generation() const override { return inner_->generation(); }
  std::uint32_t rank() const override { return inner_->rank(); }
  std::uint32_t size() const override { return inner_->size(); }
  Status all_reduce_int32(worker::Stream& stream, worker::ConstBuffer in, worker::Buffer out,
                          worker::HopSums* hops) override {
    return inner_->all_reduce_int32(stream, in, out, hops);
  }
  Result<std::vector<std::string>> gather(std::string_view mine) override {
    TRY(auto votes, inner_->gather(as_old_vote(mine)));
    for (std::string& vote : votes) vote = as_old_vote(vote);
    return votes;
  }
  void vote_by_tree() override { CHECK(false); }  // nobody may ask for it beside such a member
  void abort() override { inner_->abort(); }
  std::optional<worker::LinkFault> fault() const override { return inner_->fault(); }

 private:
  static std::string as_old_vote(std::string_view text) {
    wire::CommitVote vote;
    CHECK(vote.ParseFromArray(text.data(), static_cast<int>(text.size())));
    vote.clear_state_digest();
    vote.clear_end();
    vote.clear_squared_norms();
    vote.clear_given();
    vote.clear_reduced();
    vote.clear_hops();
    return vote.SerializeAsString();
  }

  const std::unique_ptr<worker::Communicator> inner_;
};

class OldFactory : public worker::CommunicatorFactory {
 public:
  explicit OldFactory(std::unique_ptr<worker::CommunicatorFactory> inner)
      : inner_(std::move(inner)) {}
  Result<std::unique_ptr<worker::Communicator>> create(const worker::Membership& membership,
                                                       MonoTime deadline) override {
    TRY(auto communicator, inner_->create(membership, deadline));
    return std::unique_ptr<worker::Communicator>(
        std::make_unique<OldCommunicator>(std::move(communicator)));
  }
  void fence(std::uint64_t below) override { inner_->fence(below); }

 private:
  const std::unique_ptr<worker::CommunicatorFactory> inner_;
};

}  // namespace

std::vector<std::string> as_next_operator(std::string frame) {
  wire::CoordinatorMessage message;
  CHECK(message.ParseFromString(frame));
  // It has more to say where something is under way: a word of a kind that nobody here knows, and a
  // command of such a kind.
  std::vector<std::string> frames;
  if (message.has_order()) {
    wire::CoordinatorMessage word;
    add_unknown(word);
    frames.push_back(word.SerializeAsString());
    wire::CoordinatorMessage order;
    *order.mutable_order()->mutable_id() = message.order().id();
    add_unknown(*order.mutable_order()->mutable_command());
    frames.push_back(order.SerializeAsString());
  }
  add_unknown_throughout(message);
  frames.push_back(message.SerializeAsString());
  return frames;
}

std::vector<std::string> as_next_agent(std::string frame) {
  wire::AgentMessage message;
  CHECK(message.ParseFromString(frame));
  std::vector<std::string> frames;
  if (message.has_hello())
    message.mutable_hello()->set_version_max(kNextVersion);
  else if (message.has_worker()) {
    wire::AgentMessage word;
    add_unknown(word);
    frames.push_back(word.SerializeAsString());
  }
  add_unknown_throughout(message);
  frames.push_back(message.SerializeAsString());
  return frames;
}

std::vector<std::string> as_foreign_agent(std::string frame) {
  wire::AgentMessage message;
  CHECK(message.ParseFromString(frame));
  if (!message.has_hello()) return {std::move(frame)};
  message.mutable_hello()->set_version_min(kForeignVersion);
  message.mutable_hello()->set_version_max(kForeignVersion);
  return {message.SerializeAsString()};
}

wire::WorkerEvent as_old_event(wire::WorkerEvent event) {
  clear(*event.mutable_standing(),
        std::array{"looked", "checkpoint_digest", "compares_states", "members_of", "collective",
                   "noise_scale", "parked_digest"});
  if (event.has_committed()) clear(*event.mutable_committed(), std::array{"difference"});
  if (event.has_failure()) event.mutable_failure()->clear_scope();
  if (event.has_reach() || event.has_checkpoint_damaged()) event.clear_news();
  return event;
}

std::optional<wire::WorkerCommand> as_old_command(wire::WorkerCommand command) {
  if (command.has_look() || command.has_probe()) return std::nullopt;
  if (command.has_form())
    clear(*command.mutable_form(),
          std::array{"compare_states", "members_of", "kept", "members_digest", "share"});
  return command;
}

std::unique_ptr<worker::CommunicatorFactory> as_old_factory(
    std::unique_ptr<worker::CommunicatorFactory> factory) {
  return std::make_unique<OldFactory>(std::move(factory));
}

}  // namespace rubato::sim
