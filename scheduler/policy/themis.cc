#include "scheduler/policy/themis.h"

#include "common/check.h"
#include "scheduler/model/sizes.h"
#include "scheduler/perf/throughput.h"
#include "scheduler/policy/order.h"
#include "scheduler/policy/room.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <span>

namespace rubato::sched {
namespace {

constexpr double kLeastWorkMs = 1000;  // of work, so that a job of unknown length has a rho
constexpr double kWorthOne = 4'294'967'296.0;
constexpr double kRounding = 1e-6;  // of a win: what logarithms are rounded by takes none
// Sizes that are bid for: all small ones, then in steps of an eighth.
constexpr Gpus kEachBidUpTo = 64;

std::optional<Gpus> next_bid(const Job& job, Gpus size) {
  return size_at_least(job, size < kEachBidUpTo ? size + 1 : size + size / 8);
}

bool is_in_lease(const Job& job, TimeMs now, TimeMs lease_ms) {
  return effective_gpus(job) > 0 && now < job.allocated_ms + lease_ms;
}

struct App {
  JobIndex index;
  const Job* job = nullptr;
  TypeIndex type;
  Throughput speed;
  double since_ms = 0;  // its arrival
  double left_ms = 0;   // at its minimum
  double alone_ms = 0;  // in all, on its share of the cluster
  Gpus size = 0;        // that its lease keeps; then what it is given
  double need = 0;      // its rho with what its lease keeps
};

// Of a bid.
struct Row {
  Gpus more = 0;           // than its lease keeps
  std::size_t units = 0;   // of what is offered that hold these
  std::int64_t worth = 0;  // logarithm of 1 / rho, in units of 2^-32
};
using Bid = std::vector<Row>;  // rising in both; the first is to get nothing

Gpus unit_of(Gpus offered) {
  return std::max<Gpus>((offered + Themis::kUnitsMost - 1) / Themis::kUnitsMost, 1);
}

// The greatest worth of some bids together, by how many units they share.
using Line = std::vector<std::int64_t>;

Line with(const Bid& bid, const Line& others) {
  Line line(others.size());
  for (std::size_t units = 0; units < line.size(); ++units) {
    line[units] = bid.front().worth + others[units];
    for (const Row& row : bid) {
      if (row.units > units) break;
      line[units] = std::max(line[units], row.worth + others[units - row.units]);
    }
  }
  return line;
}

// The greatest sum of one of the first and one of the second that share all units.
std::int64_t best_of(const Line& first, const Line& second) {
  std::int64_t best = first.front() + second.back();
  for (std::size_t units = 1; units < first.size(); ++units)
    best = std::max(best, first[units] + second[second.size() - 1 - units]);
  return best;
}

// What each bidder keeps of what it wins. Of equal splits the one that gives the first bidder most.
std::vector<Gpus> kept_of(const std::vector<Bid>& bids, std::size_t units) {
  const std::size_t many = bids.size();
  const Line nobody(units + 1, 0);
  std::vector<Line> before(many + 1, nobody);  // of the bids before this one
  std::vector<Line> from(many + 1, nobody);    // of this one and those after it
  for (std::size_t i = 0; i < many; ++i) before[i + 1] = with(bids[i], before[i]);
  for (std::size_t i = many; i-- > 0;) from[i] = with(bids[i], from[i + 1]);
  std::vector<Gpus> kept;
  std::size_t left = units;
  for (std::size_t i = 0; i < many; ++i) {
    const auto won = std::find_if(bids[i].rbegin(), bids[i].rend(), [&](const Row& row) {
      return row.units <= left && row.worth + from[i + 1][left - row.units] == from[i][left];
    });
    CHECK(won != bids[i].rend());
    left -= won->units;
    const std::int64_t others = from[0].back() - won->worth;
    const std::int64_t loss = best_of(before[i], from[i + 1]) - others;
    const double part = std::exp(-static_cast<double>(loss) / kWorthOne);
    kept.push_back(
        static_cast<Gpus>(std::min(part + kRounding, 1.0) * static_cast<double>(won->more)));
    if (won->more > 0) kept.back() = std::max<Gpus>(kept.back(), 1);
  }
  return kept;
}

// One decision.
class Market {
 public:
  Market(const Problem& problem, double fairness, TimeMs lease_ms)
      : problem_(problem),
        fairness_(fairness),
        lease_ms_(lease_ms),
        now_ms_(problem.state().now_ms),
        room_(problem),
        turn_(problem.state().jobs.size(), problem.state().jobs.size()) {}

  Targets run() {
    const std::vector<JobIndex> by_age = order_by(problem_, [](JobIndex) { return 0; });
    const auto jobs =
        std::ranges::count_if(by_age, [&](JobIndex j) { return room_.type_for(j).has_value(); });
    const Gpus gpus = std::accumulate(room_.left().begin(), room_.left().end(), Gpus{0});
    gpus_a_job_ = static_cast<double>(std::max<Gpus>(gpus, 1)) /
                  static_cast<double>(std::max<std::ptrdiff_t>(jobs, 1));
    targets_.sizes.assign(by_age.size(), 0);
    const std::span<const JobIndex> all(by_age);
    for (std::size_t from = 0, to = 0; from < all.size(); from = to) {
      const std::int64_t priority = problem_.job(all[from]).priority;
      while (to < all.size() && problem_.job(all[to]).priority == priority) ++to;
      serve(all.subspan(from, to - from));
    }
    targets_.order = order_by(problem_, [&](JobIndex j) { return turn_[j.value]; });
    targets_.displaces = Displaces::kLaterInOrder;
    return std::move(targets_);
  }

 private:
  // Jobs of one priority, by age.
  void serve(std::span<const JobIndex> jobs) {
    std::vector<App> apps = apps_of(jobs);
    std::vector<App*> bidders, others;
    for (App& app : apps) bidders.push_back(&app);
    std::ranges::stable_sort(bidders, std::greater(), &App::need);
    const auto others_first = std::ranges::stable_partition(
        bidders, [](const App* app) { return app->size < app->job->max; });
    const auto able = static_cast<std::size_t>(others_first.begin() - bidders.begin());
    bidders.resize(std::min(how_many_bid(able), Themis::kBiddersMost));
    for (App& app : apps)
      if (std::ranges::find(bidders, &app) == bidders.end()) others.push_back(&app);
    auction(bidders);
    std::ranges::stable_partition(others,
                                  [](const App* app) { return effective_gpus(*app->job) > 0; });
    others.insert(others.end(), bidders.begin(), bidders.end());
    hand_out_rest(others);
    for (const App& app : apps) targets_.sizes[app.index.value] = app.size;
  }

  std::size_t how_many_bid(std::size_t able) const {
    const double part = (1 - fairness_) * static_cast<double>(able);
    return static_cast<std::size_t>(std::ceil(part - 1e-9));
  }

  // Leases keep what they hold before anybody is given a type.
  std::vector<App> apps_of(std::span<const JobIndex> jobs) {
    std::vector<App> apps;
    std::vector<JobIndex> others;
    for (const JobIndex j : jobs) {
      const Job& job = problem_.job(j);
      const auto type = room_.type_for(j);
      if (!type || !is_in_lease(job, now_ms_, lease_ms_) ||
          !room_.take(j, *type, effective_gpus(job))) {
        others.push_back(j);
        continue;
      }
      apps.push_back(app_of(j, *type));
      give(apps.back(), effective_gpus(job));
    }
    Room planned = room_;
    for (const JobIndex j : others) {
      const auto type = planned.type_for(j);
      if (!type) continue;
      planned.take(j, *type, problem_.job(j).min);
      apps.push_back(app_of(j, *type));
    }
    for (App& app : apps) app.need = rho(app, app.size);
    return apps;
  }

  App app_of(JobIndex j, TypeIndex type) const {
    const Job& job = problem_.job(j);
    const auto minimum = static_cast<double>(job.min);
    const double had = static_cast<double>(job.attained_gpu_ms) / minimum;
    const double left = job.remaining_ms ? static_cast<double>(*job.remaining_ms) : had;
    const double all = job.duration_ms ? static_cast<double>(*job.duration_ms) : had + left;
    const Throughput speed(job.measured, problem_.name(type));
    const auto share = size_at_most(job, static_cast<Gpus>(gpus_a_job_));
    const double pace = share ? speed.at(job.min) / speed.at(*share) : minimum / gpus_a_job_;
    return {.index = j,
            .job = &job,
            .type = type,
            .speed = speed,
            .since_ms = std::max(static_cast<double>(now_ms_) - job.queued_at * 1000, 0.0),
            .left_ms = std::max(left, kLeastWorkMs),
            .alone_ms = std::max(all, kLeastWorkMs) * pace};
  }

  double rho(const App& app, Gpus gpus) const {
    const double left = gpus == 0 ? static_cast<double>(lease_ms_) + app.left_ms
                                  : app.left_ms * app.speed.at(app.job->min) / app.speed.at(gpus);
    return (app.since_ms + left) / app.alone_ms;
  }

  Bid bid_of(const App& app, Gpus unit) const {
    const auto worth = [&](Gpus gpus) {
      return static_cast<std::int64_t>(std::llround(-std::log(rho(app, gpus)) * kWorthOne));
    };
    Bid bid{{.worth = worth(app.size)}};
    const Gpus most = app.size + room_.left_for(app.index, app.type);
    for (auto to = next_bid(*app.job, app.size); to && *to <= most; to = next_bid(*app.job, *to))
      if (const std::int64_t then = worth(*to); then > bid.back().worth) {
        const Gpus more = *to - app.size;
        bid.push_back({more, static_cast<std::size_t>((more + unit - 1) / unit), then});
      }
    return bid;
  }

  void auction(const std::vector<App*>& bidders) {
    for (TypeIndex type; type.value < problem_.count_types(); ++type) {
      std::vector<App*> here;
      std::ranges::copy_if(bidders, std::back_inserter(here),
                           [&](const App* app) { return app->type == type; });
      const Gpus offered = std::max<Gpus>(room_.left()[type], 0);
      const Gpus unit = unit_of(offered);
      std::vector<Bid> bids;
      bids.reserve(here.size());
      for (const App* app : here) bids.push_back(bid_of(*app, unit));
      const std::vector<Gpus> kept = kept_of(bids, static_cast<std::size_t>(offered / unit));
      for (std::size_t i = 0; i < here.size(); ++i) {
        if (kept[i] == 0) continue;
        const Job& job = *here[i]->job;
        const auto least = size_at_least(job, std::max(here[i]->size, job.min));
        const auto to = size_at_most(job, here[i]->size + kept[i]);
        raise(*here[i], std::max(*least, to.value_or(*least)));
      }
    }
  }

  // Minimums, then a step of size each in turn, as long as that is faster.
  void hand_out_rest(const std::vector<App*>& apps) {
    for (App* app : apps)
      if (const auto least = size_at_least(*app->job, app->job->min); least && app->size == 0)
        raise(*app, *least);
    for (bool has_grown = true; has_grown;) {
      has_grown = false;
      for (App* app : apps) {
        const auto next = size_at_least(*app->job, app->size + 1);
        if (app->size == 0 || !next || app->speed.at(*next) <= app->speed.at(app->size)) continue;
        has_grown = raise(*app, *next) || has_grown;
      }
    }
  }

  bool raise(App& app, Gpus to) {
    if (!room_.take(app.index, app.type, to - app.size)) return false;
    give(app, to);
    return true;
  }

  void give(App& app, Gpus to) {
    std::size_t& turn = turn_[app.index.value];
    if (app.size == 0 && to > 0) turn = turns_++;
    app.size = to;
  }

  const Problem& problem_;
  const double fairness_;
  const TimeMs lease_ms_;
  const TimeMs now_ms_;
  double gpus_a_job_ = 0;  // 1/N of the cluster
  Room room_;
  Targets targets_;
  std::vector<std::size_t> turn_;  // by JobIndex: when it was served; else after all
  std::size_t turns_ = 0;
};

}  // namespace

Descriptor Themis::describe() {
  return {.name = "themis",
          .about = "finish-time fairness: jobs that sharing slows down most bid for leases of GPUs",
          .rule =
              "A job's rho is the time from its arrival to its end, over the time that it would "
              "take alone on its share of the cluster. GPUs are leased; those of which the lease "
              "is over, and free ones, are offered to the jobs with the greatest rho. They bid "
              "for sizes, the split with the greatest product of 1 / rho wins, and a winner keeps "
              "the part of its win that the others do not lose by it, but its minimum at least. "
              "What is left over goes to those that did not bid, first to those that hold GPUs.",
          .choose =
              "Where users should not be slower than on a part of the cluster of their own, and "
              "that counts more than the mean completion time. It needs the work left "
              "(stop.steps) and measured throughput; a job of which the work is not known comes "
              "early. Each lease that ends may cost a preemption. Large jobs may starve behind a "
              "stream of "
              "small ones that are shorter than a lease.",
          .source =
              "Mahajan et al., NSDI'20. *Reconstruction*: one job is one application, the "
              "scheduler makes the bids itself, contention is that of the moment, placement is not "
              "in the bids, and nobody pays below its minimum; its published results are "
              "*unverified* here",
          .parameters = {{.name = "fairness",
                          .least = 0,
                          .most = 1,
                          .standard = 0.8,
                          .about = "the part of the jobs that does not bid, those with the least "
                                   "rho; 1: there is no auction"},
                         {.name = "leaseSeconds",
                          .least = 1,
                          .most = 1e6,
                          .standard = 1200,
                          .unit = "s",
                          .about = "a job keeps its GPUs for at least so long"}},
          .knows = Knows::kRemaining,
          .elastic = true,
          .timed = true,
          .uses_throughput = true};
}

Themis::Themis(const std::vector<double>& parameters)
    : fairness_(parameters.at(0)), lease_ms_(std::llround(parameters.at(1) * 1000)) {}

Targets Themis::decide(const Problem& problem) const {
  return Market(problem, fairness_, lease_ms_).run();
}

std::optional<TimeMs> Themis::next_wake(const ClusterState& state) const {
  std::optional<TimeMs> next;
  for (const Job& job : state.jobs) {
    if (!is_in_lease(job, state.now_ms, lease_ms_)) continue;
    const TimeMs end = job.allocated_ms + lease_ms_;
    if (!next || end < *next) next = end;
  }
  return next;
}

}  // namespace rubato::sched
