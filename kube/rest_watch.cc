// Watches by Boost.Asio. Each watch has an io_context of its own that only next() runs, in the
// calling task: no extra thread, no queue, and the socket is read only when the reader wants more.
#include "kube/errors.h"
#include "kube/http1.h"
#include "kube/rest_transport.h"
#include "kube/tls_client.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <netinet/tcp.h>

namespace rubato::kube {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// One request whose answer is read line by line.
class AsioLines {
 public:
  AsioLines(const Clock& clock, RestTarget target, const StreamBounds& bounds)
      : clock_(clock),
        bounds_(bounds),
        target_(std::move(target)),
        context_(asio::ssl::context::tls_client),
        socket_(io_),
        buffer_(kWatchReadBytes) {}

  AsioLines(const AsioLines&) = delete;
  AsioLines& operator=(const AsioLines&) = delete;
  ~AsioLines() {
    error_code ignored;
    socket_.close(ignored);
    io_.restart();
    io_.poll();  // lets the operations that were cut off end
  }

  Status open(const HttpRequest& request, MonoTime deadline) {
    const MonoTime connected = std::min(deadline, clock_.now() + kConnectLimit);
    TRY_OK(connect(connected));
    if (target_.url.tls) TRY_OK(handshake(connected));
    TRY_OK(write(request_text(request), deadline));
    while (!http_.has_head()) TRY_OK(read_some(deadline));
    ends_ = clock_.now() + bounds_.length;
    if (http_.status() == 200) return ok();
    while (!http_.is_complete() && body_.size() < kErrorBodyMax) {
      if (!read_some(deadline).ok()) break;
    }
    return error_from_body(http_.status(), body_, http_.header("retry-after"));
  }

  // Valid until the next call. The last line may come without a newline.
  Result<std::string_view> next(MonoTime deadline) {
    for (;;) {
      if (stopped_) return Error(Code::kCancelled, "the watch was stopped");
      if (const auto newline = body_.find('\n', scanned_); newline != std::string::npos) {
        const std::string_view line = std::string_view(body_).substr(start_, newline - start_);
        start_ = scanned_ = newline + 1;
        line_began_ = clock_.now();  // of the next, if a part of it is here
        return line;
      }
      if (http_.is_complete() && start_ < body_.size()) {
        const std::string_view line = std::string_view(body_).substr(start_);
        start_ = scanned_ = body_.size();
        return line;
      }
      TRY_OK(make_room());
      if (http_.is_complete())
        return Error(Code::kUnavailable, "the server ended the stream")
            .set_reason(std::string(kStreamEnd));
      const MonoTime limit = limit_of_silence();
      const Status read = read_some(std::min(deadline, limit));
      if (read.ok()) continue;
      if (read.error().code() == Code::kTimeout && clock_.now() >= limit)
        return Error(Code::kUnavailable, "the server has been silent for too long");
      return read.error();
    }
  }

  void stop() {
    stopped_ = true;
    asio::post(io_, [] {});  // wakes run_until()
  }

 private:
  MonoTime limit_of_silence() const {
    const MonoTime limit = std::min(heard_ + bounds_.silence, ends_);
    return body_.empty() ? limit : std::min(limit, line_began_ + bounds_.line);
  }

  // Runs `io_` until `done`. An operation that is still under way at the deadline goes on.
  Status run_until(MonoTime deadline, const bool& done) {
    io_.restart();
    while (!done) {
      if (stopped_) return Error(Code::kCancelled, "the watch was stopped");
      if (io_.run_one_until(deadline) == 0 && !done) {
        if (clock_.now() >= deadline) return Error(Code::kTimeout, "no bytes until the deadline");
        io_.restart();
      }
    }
    return ok();
  }

  Status check(const char* what) const {
    if (!failure_) return ok();
    return Error(Code::kUnavailable, std::string(what) + " " + authority_of(target_.url) + ": " +
                                         failure_.message() + refusal_->take());
  }

  Status connect(MonoTime deadline) {
    done_ = false;
    tcp::resolver resolver(io_);
    resolver.async_resolve(
        target_.url.host, std::to_string(target_.url.port),
        [this](const error_code& code, const tcp::resolver::results_type& results) {
          if (code) return finish(code);
          asio::async_connect(
              socket_, results,
              [this](const error_code& connected, const tcp::endpoint&) { finish(connected); });
        });
    TRY_OK(run_until(deadline, done_));
    TRY_OK(check("connect to"));
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.set_option(asio::socket_base::keep_alive(true), ignored);
    const int limit_ms = static_cast<int>(
        std::chrono::duration_cast<std::chrono::milliseconds>(kTcpUserTimeout).count());
    set_tcp(TCP_USER_TIMEOUT, limit_ms);
    set_tcp(TCP_KEEPIDLE, static_cast<int>(std::chrono::seconds(kTcpProbeAfter).count()));
    set_tcp(TCP_KEEPINTVL, static_cast<int>(std::chrono::seconds(kTcpProbeEach).count()));
    set_tcp(TCP_KEEPCNT, kTcpProbes);
    return ok();
  }

  void set_tcp(int option, int value) {
    setsockopt(socket_.native_handle(), IPPROTO_TCP, option, &value, sizeof value);
  }

  Status handshake(MonoTime deadline) {
    TRY(const Credential credential, target_.credentials->get());
    TRY_OK(configure_tls(context_.native_handle(), credential, target_.verify));
    note_refusals(context_.native_handle(), refusal_);
    tls_ = std::make_unique<asio::ssl::stream<tcp::socket&>>(socket_, context_);
    if (target_.verify) TRY_OK(expect_server(tls_->native_handle(), target_.server_name));
    done_ = false;
    tls_->async_handshake(asio::ssl::stream_base::client,
                          [this](const error_code& code) { finish(code); });
    TRY_OK(run_until(deadline, done_));
    return check("TLS with");
  }

  Status write(const std::string& text, MonoTime deadline) {
    out_ = text;
    done_ = false;
    const auto handler = [this](const error_code& code, std::size_t) { finish(code); };
    if (tls_) {
      asio::async_write(*tls_, asio::buffer(out_), handler);
    } else {
      asio::async_write(socket_, asio::buffer(out_), handler);
    }
    TRY_OK(run_until(deadline, done_));
    heard_ = clock_.now();
    return check("send to");
  }

  Status read_some(MonoTime deadline) {
    if (!reading_) {
      reading_ = true;
      done_ = false;
      const auto handler = [this](const error_code& code, std::size_t count) {
        received_ = count;
        finish(code);
      };
      if (tls_) {
        tls_->async_read_some(asio::buffer(buffer_), handler);
      } else {
        socket_.async_read_some(asio::buffer(buffer_), handler);
      }
    }
    TRY_OK(run_until(deadline, done_));
    reading_ = false;
    if (received_ > 0) {
      heard_ = clock_.now();
      if (body_.empty()) line_began_ = heard_;  // also of what comes together with the head
      TRY_OK(http_.feed(std::string_view(buffer_.data(), received_), body_));
      received_ = 0;
    }
    if (!failure_) return ok();
    // Servers often close without a TLS farewell; the chunked body says whether it was complete.
    if (failure_ == asio::error::eof || failure_ == asio::ssl::error::stream_truncated)
      return http_.end();
    return check("read from");
  }

  // Forgets the lines that were handed out; bounds the one that is arriving.
  Status make_room() {
    body_.erase(0, start_);
    start_ = 0;
    scanned_ = body_.size();
    if (body_.size() > kWatchLineMax)
      return Error(Code::kInternal, "a watch event is larger than any object may be");
    return ok();
  }

  void finish(const error_code& code) {
    failure_ = code;
    done_ = true;
  }

  std::string request_text(const HttpRequest& request) const {
    const std::string host =
        target_.server_name != target_.url.host ? target_.server_name : authority_of(target_.url);
    std::string text = request.method + " " + target_.url.prefix + request.path + " HTTP/1.1\r\n";
    text += "Host: " + host + "\r\nAccept: " + request.accept + "\r\n";
    for (const auto& [name, value] : target_.headers) text += name + ": " + value + "\r\n";
    if (!request.authorization.empty()) text += "Authorization: " + request.authorization + "\r\n";
    return text + "\r\n";
  }

  const Clock& clock_;
  StreamBounds bounds_;
  RestTarget target_;
  std::shared_ptr<TlsRefusal> refusal_ = std::make_shared<TlsRefusal>();
  asio::io_context io_{1};
  asio::ssl::context context_;
  tcp::socket socket_;
  std::unique_ptr<asio::ssl::stream<tcp::socket&>> tls_;
  std::vector<char> buffer_;
  std::string out_;

  Http1Decoder http_;
  std::string body_;
  std::size_t start_ = 0;    // of the line that comes next
  std::size_t scanned_ = 0;  // no newline before this
  bool reading_ = false;
  bool done_ = false;
  std::size_t received_ = 0;
  error_code failure_;
  MonoTime heard_{};
  MonoTime ends_{};
  MonoTime line_began_{};
  std::atomic<bool> stopped_{false};
};

class AsioWatch : public Watch {
 public:
  AsioWatch(const Clock& clock, const RestTarget& target, const StreamBounds& bounds)
      : lines_(clock, target, bounds) {}
  Status open(const HttpRequest& request, MonoTime deadline) {
    return lines_.open(request, deadline);
  }
  Result<WatchEvent> next(MonoTime deadline) override {
    for (;;) {
      TRY(const std::string_view line, lines_.next(deadline));
      if (line.find_first_not_of(" \r") != std::string_view::npos) return parse_watch_line(line);
    }
  }
  void stop() override { lines_.stop(); }

 private:
  AsioLines lines_;
};

class AsioLineStream : public LineStream {
 public:
  AsioLineStream(const Clock& clock, const RestTarget& target)
      : lines_(clock, target, {kStreamSilenceMax, kStreamLengthMax, kStreamSilenceMax}) {}
  Status open(const HttpRequest& request, MonoTime deadline) {
    return lines_.open(request, deadline);
  }
  Result<std::string> next(MonoTime deadline) override {
    TRY(const std::string_view line, lines_.next(deadline));
    return std::string(line);
  }
  void stop() override { lines_.stop(); }

 private:
  AsioLines lines_;
};

}  // namespace

Result<std::unique_ptr<Watch>> open_asio_watch(const RestTarget& target, const HttpRequest& request,
                                               const Clock& clock, MonoTime deadline,
                                               const StreamBounds& bounds) {
  auto watch = std::make_unique<AsioWatch>(clock, target, bounds);
  if (const Status opened = watch->open(request, deadline); !opened.ok())
    return opened.error().in("watch " + request.path);
  return std::unique_ptr<Watch>(std::move(watch));
}

Result<std::unique_ptr<LineStream>> open_asio_lines(const RestTarget& target,
                                                    const HttpRequest& request, const Clock& clock,
                                                    MonoTime deadline) {
  auto stream = std::make_unique<AsioLineStream>(clock, target);
  if (const Status opened = stream->open(request, deadline); !opened.ok())
    return opened.error().in("GET " + request.path);
  return std::unique_ptr<LineStream>(std::move(stream));
}

}  // namespace rubato::kube
