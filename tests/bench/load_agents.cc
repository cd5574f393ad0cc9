#include "tests/bench/load_agents.h"

#include <algorithm>

#include <fmt/format.h>

namespace rubato::bench {
namespace {
constexpr int kDialers = 128;
constexpr auto kStep = 10s;
constexpr auto kLook = 5ms;  // at who has to beat
constexpr auto kRedial = 100ms;
double ms(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }
}  // namespace

std::string LoadAgents::pod_uid(const std::string& job_uid, int number) {
  return fmt::format("{}-{:06}", job_uid.substr(0, 28), number);
}

LoadAgents::LoadAgents(Executor& executor, net::Endpoint coordinator,
                       const std::vector<LoadJob>& jobs)
    : executor_(executor),
      coordinator_(std::move(coordinator)),
      network_(executor),
      news_(executor.make_condition()),
      calls_(executor.make_condition()) {
  for (const LoadJob& job : jobs)
    for (int number = 0; number < job.agents; ++number) {
      Agent& agent = agents_.emplace_back();
      agent.job = &job;
      agent.number = number;
      agent.is_queued = std::make_shared<std::atomic<bool>>(false);
      agent.standing.mutable_id()->set_pod_uid(pod_uid(job.uid, number));
      agent.standing.mutable_id()->set_incarnation(1);
      agent.standing.mutable_listen()->set_host("127.0.0.1");
      agent.standing.mutable_listen()->set_port(4431);
      agent.standing.set_phase(wire::WORKER_STARTING);
      agent.standing.set_compares_states(true);
      to_dial_.push_back(agents_.size() - 1);
    }
  tasks_.push_back(executor_.spawn("serve", [this](std::stop_token stop) { serve(stop); }));
  for (int i = 0; i < kDialers; ++i)
    tasks_.push_back(executor_.spawn("dial", [this](std::stop_token stop) { dial(stop); }));
}

LoadAgents::~LoadAgents() {
  stopping_ = true;
  for (Task& task : tasks_) task.request_stop();
  news_->notify_all();
  calls_->notify_all();
  tasks_.clear();
}

void LoadAgents::dial(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::size_t index = 0;
    {
      std::unique_lock lock(mutex_);
      calls_->wait_until(lock, executor_.now() + 1s,
                         [&] { return stopping_ || !to_dial_.empty(); });
      if (to_dial_.empty()) continue;
      index = to_dial_.front();
      to_dial_.pop_front();
    }
    auto channel = network_.dial(coordinator_, agents_[index].job->tls, executor_.now() + 5s);
    if (!channel.ok()) executor_.sleep_for(kRedial, stop);
    {
      const std::lock_guard lock(mutex_);
      if (channel.ok())
        dialed_.emplace_back(index, std::move(*channel));
      else
        to_dial_.push_back(index);
    }
    news_->notify_all();
  }
}

void LoadAgents::serve(const std::stop_token& stop) {
  MonoTime looked{};
  while (!stop.stop_requested() && !stopping_) {
    std::vector<std::pair<std::size_t, MonoTime>> ready;
    std::deque<std::pair<std::size_t, std::shared_ptr<net::Channel>>> dialed;
    {
      std::unique_lock lock(mutex_);
      news_->wait_until(lock, executor_.now() + kLook,
                        [&] { return stopping_ || !ready_.empty() || !dialed_.empty(); });
      ready.swap(ready_);
      dialed.swap(dialed_);
    }
    for (auto& [index, channel] : dialed) say_hello(index, std::move(channel));
    for (const auto& [index, arrived] : ready) read(index, arrived);
    const MonoTime now = executor_.now();
    if (now < looked + kLook) continue;
    looked = now;
    for (Agent& agent : agents_)
      if (agent.welcomed && agent.next_beat <= now) beat(agent, now);
  }
}

void LoadAgents::say_hello(std::size_t index, std::shared_ptr<net::Channel> channel) {
  Agent& agent = agents_[index];
  agent.channel = std::move(channel);
  advance(agent, executor_.now());
  wire::AgentMessage message;
  wire::Hello& hello = *message.mutable_hello();
  hello.set_version_min(1);
  hello.set_version_max(1);
  hello.set_job_uid(agent.job->uid);
  hello.set_token(agent.job->token);
  hello.set_pod_uid(agent.standing.id().pod_uid());
  hello.set_pod_name(fmt::format("load-{}", agent.number));
  hello.set_node(fmt::format("n{}", agent.number));
  *hello.add_workers() = agent.standing;
  (void)agent.channel->send(message.SerializeAsString(), executor_.now() + 1s);
  agent.channel->on_news([this, index, is_queued = agent.is_queued] {
    if (is_queued->exchange(true)) return;
    {
      const std::lock_guard lock(mutex_);
      ready_.emplace_back(index, executor_.now());
    }
    news_->notify_all();
  });
}

void LoadAgents::read(std::size_t index, MonoTime arrived) {
  Agent& agent = agents_[index];
  agent.is_queued->store(false);
  while (agent.channel) {
    const auto frame = agent.channel->receive(executor_.now());
    if (frame.ok()) {
      wire::CoordinatorMessage message;
      if (message.ParseFromString(*frame)) obey(agent, message, arrived);
      continue;
    }
    if (frame.error().code() == Code::kTimeout) return;
    agent.channel.reset();
    agent.welcomed = false;
    if (agent.gone) return;
    const std::lock_guard lock(mutex_);
    to_dial_.push_back(index);
    calls_->notify_all();
  }
}

void LoadAgents::obey(Agent& agent, const wire::CoordinatorMessage& message, MonoTime arrived) {
  if (message.has_welcome()) {
    agent.welcomed = true;
    agent.period = std::chrono::milliseconds(message.welcome().heartbeat_ms());
    agent.next_beat = executor_.now() + agent.period * (agent.number % 50) / 50;
  } else if (message.has_refused() || message.has_not_leader()) {
    agent.channel->close();
  } else if (message.has_restart_worker()) {
    agent.standing.mutable_id()->set_incarnation(agent.standing.id().incarnation() + 1);
    agent.standing.set_phase(wire::WORKER_STARTING);
    agent.standing.set_has_state(false);
    say(agent);
  } else if (message.has_order()) {
    obey(agent, message.order().command(), arrived);
  }
}

void LoadAgents::obey(Agent& agent, const wire::WorkerCommand& command, MonoTime arrived) {
  wire::WorkerStanding& s = agent.standing;
  const MonoTime now = executor_.now();
  advance(agent, now);
  if (command.has_configure()) {
    s.set_phase(wire::WORKER_READY);
    s.set_fingerprint("f00d");
  } else if (command.has_abort()) {
    s.set_fenced_below(command.abort().below());
    if (s.phase() == wire::WORKER_TRAINING) s.set_phase(wire::WORKER_ABORTED);
    agent.fenced = arrived;
  } else if (command.has_form()) {
    const wire::Form& form = command.form();
    s.set_generation(form.generation());
    s.set_prepared_generation(form.generation());
    s.set_members_of(form.generation());
    s.set_phase(wire::WORKER_TRAINING);
    s.set_has_state(true);
    Begun& begun = begun_[agent.job];
    if (form.generation() > begun.generation) begun = {form.generation(), now};
    agent.formed = arrived;
    agent.stepping = begun.at;
    agent.base_seq = form.mode() == wire::FORM_RECOVER ? form.base_seq() : 0;
    agent.base_step = agent.base_seq;
    s.set_seq(agent.base_seq);
    s.set_step(agent.base_step);
  } else if (command.has_look()) {
    s.set_looked(command.look().number());
  } else {
    return;
  }
  say(agent);
}

// All of a job are at the same step, or one apart: fences reach thousands within less than a step.
void LoadAgents::advance(Agent& agent, MonoTime now) {
  wire::WorkerStanding& s = agent.standing;
  if (s.phase() != wire::WORKER_TRAINING) return;
  const auto steps = static_cast<std::uint64_t>((now - agent.stepping) / kStep);
  s.set_seq(agent.base_seq + steps);
  s.set_step(agent.base_step + steps);
  s.set_loss(3);
  s.set_step_seconds(std::chrono::duration<double>(kStep).count());
  if (s.seq() == 0) return;
  s.mutable_last()->set_seq(s.seq() - 1);
  s.mutable_last()->set_step(s.step() - 1);
  s.mutable_last()->set_outcome(wire::OUTCOME_APPLY);
}

void LoadAgents::beat(Agent& agent, MonoTime now) {
  agent.next_beat += agent.period;
  advance(agent, now);
  wire::AgentMessage message;
  message.mutable_heartbeat()->set_sequence(++agent.beats);
  *message.mutable_heartbeat()->add_workers() = agent.standing;
  (void)agent.channel->send(message.SerializeAsString(), now);
}

void LoadAgents::say(Agent& agent) {
  if (!agent.channel) return;
  wire::AgentMessage message;
  *message.mutable_worker()->mutable_standing() = agent.standing;
  (void)agent.channel->send(message.SerializeAsString(), executor_.now());
}

// Reads what the serving task writes without a lock: times and numbers, long before they are used.
std::string LoadAgents::lose_one() {
  const int size = agents_[0].job->agents;
  const std::uint64_t before = agents_[1].standing.generation();
  agents_[0].gone = true;
  const MonoTime cut = executor_.now();
  if (agents_[0].channel) agents_[0].channel->close();
  const MonoTime deadline = cut + 60s;
  const auto all_formed = [&] {
    return std::all_of(agents_.begin() + 1, agents_.begin() + size,
                       [&](const Agent& a) { return a.standing.generation() > before; });
  };
  while (!all_formed() && executor_.now() < deadline) executor_.sleep_for(10ms);
  if (!all_formed()) return "not all were formed anew within a minute\n";
  const auto range = [&](auto moment) {
    const auto [a, b] =
        std::minmax_element(agents_.begin() + 1, agents_.begin() + size,
                            [&](const Agent& x, const Agent& y) { return x.*moment < y.*moment; });
    return std::pair((*a).*moment, (*b).*moment);
  };
  const auto [first_fence, last_fence] = range(&Agent::fenced);
  const auto [first_form, last_form] = range(&Agent::formed);
  return fmt::format(
      "a job of {} loses one: first fence {:.0f} ms after the cut, the last {:.0f} ms after the "
      "first; Forms from {:.0f} to {:.0f} ms after the last fence\n",
      size, ms(first_fence - cut), ms(last_fence - first_fence), ms(first_form - last_fence),
      ms(last_form - last_fence));
}

}  // namespace rubato::bench
