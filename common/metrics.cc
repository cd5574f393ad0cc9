#include "common/metrics.h"

#include "common/check.h"

#include <exception>
#include <mutex>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace rubato {
namespace {

class CounterHandle : public Counter {
 public:
  explicit CounterHandle(prometheus::Counter& counter) : counter_(counter) {}
  void add(double amount) override { counter_.Increment(amount); }
  double value() const override { return counter_.Value(); }

 private:
  prometheus::Counter& counter_;
};

class GaugeHandle : public Gauge {
 public:
  explicit GaugeHandle(prometheus::Gauge& gauge) : gauge_(gauge) {}
  void set(double value) override { gauge_.Set(value); }
  void add(double amount) override { gauge_.Increment(amount); }
  double value() const override { return gauge_.Value(); }

 private:
  prometheus::Gauge& gauge_;
};

class HistogramHandle : public Histogram {
 public:
  explicit HistogramHandle(prometheus::Histogram& histogram) : histogram_(histogram) {}
  void observe(double value) override { histogram_.Observe(value); }

 private:
  prometheus::Histogram& histogram_;
};

using Key = std::pair<std::string, Labels>;

// A bad name, or one name with two types, is a mistake in our code.
template <class Make>
auto made(const std::string& name, Make make) {
  try {
    return make();
  } catch (const std::exception& error) {
    check_failed(__FILE__, __LINE__, "metric " + name + ": " + error.what());
  }
}

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  mutable std::mutex mutex;  // guards the maps; the metrics themselves are atomic
  std::map<Key, std::unique_ptr<Counter>> counters;
  std::map<Key, std::unique_ptr<Gauge>> gauges;
  std::map<Key, std::unique_ptr<Histogram>> histograms;
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

Counter& Metrics::counter(const std::string& name, const std::string& help, const Labels& labels) {
  const std::lock_guard lock(impl_->mutex);
  auto& handle = impl_->counters[Key(name, labels)];
  if (!handle) {
    handle = made(name, [&] {
      auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(impl_->registry);
      return std::make_unique<CounterHandle>(family.Add(labels));
    });
  }
  return *handle;
}

Gauge& Metrics::gauge(const std::string& name, const std::string& help, const Labels& labels) {
  const std::lock_guard lock(impl_->mutex);
  auto& handle = impl_->gauges[Key(name, labels)];
  if (!handle) {
    handle = made(name, [&] {
      auto& family = prometheus::BuildGauge().Name(name).Help(help).Register(impl_->registry);
      return std::make_unique<GaugeHandle>(family.Add(labels));
    });
  }
  return *handle;
}

Histogram& Metrics::histogram(const std::string& name, const std::string& help,
                              const Labels& labels, const std::vector<double>& buckets) {
  const std::lock_guard lock(impl_->mutex);
  auto& handle = impl_->histograms[Key(name, labels)];
  if (!handle) {
    handle = made(name, [&] {
      auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(impl_->registry);
      return std::make_unique<HistogramHandle>(family.Add(labels, buckets));
    });
  }
  return *handle;
}

std::string Metrics::expose() const {
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace rubato
