// The plug-in libgacc-mpi.so: ranks over MPI. Messages are sent and received without blocking, one call of
// the library at a time, so that any MPI library with MPI_THREAD_SERIALIZED will do, and a wait can end when
// a peer has failed.
//
// A thread of its own tells the peers that this process lives, also while it computes, and hears from them:
// signs of life, the wish to end the run in order, failures, and at last that the job is over.
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "runtime/ranks/collective.h"

namespace gacc::mpi {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kData = 1, kControl = 2;       // tags
constexpr auto kListens = milliseconds(50);  // between two looks at what peers say
constexpr auto kGrace = seconds(3);          // for the others, once a rank has failed
constexpr size_t kMostText = 4000;           // bytes of a failure's text

void tell(const std::string& failure) { std::fprintf(stderr, "gacc-exec: error: %s\n", failure.c_str()); }

enum class Word : char { lives = 'l', stop = 's', failed = 'f', over = 'o' };

double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

class MpiCollective final : public Collective {
 public:
  explicit MpiCollective(const CollectiveOptions& options) : timeout_(options.timeout) {}

  Status open() {
    int level = 0;
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS)
      return Status::error("MPI does not start");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    if (level < MPI_THREAD_SERIALIZED)
      return Status::error("the MPI library was built without threads (MPI_THREAD_SERIALIZED)");
    MPI_Comm_dup(MPI_COMM_WORLD, &data_);
    MPI_Comm_dup(MPI_COMM_WORLD, &control_);
    char host[MPI_MAX_PROCESSOR_NAME] = "";
    int length = 0;
    MPI_Get_processor_name(host, &length);
    const std::vector<std::string> hosts = GACC_TRY(all_gather(*this, host));
    for (const std::string& each : hosts) peers_.push_back({each, Clock::now()});
    thread_ = std::jthread([this](const std::stop_token& quit) { attend(quit); });
    return {};
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives) override {
    std::vector<MPI_Request> requests;
    {
      const std::lock_guard lock(mutex_);
      GACC_TRY(failure());
      std::vector<std::span<const std::byte>> own;
      for (const Outgoing& each : sends)
        if (each.rank == rank_) own.push_back(each.bytes);
      size_t next = 0;
      for (const auto& [from, bytes] : receives) {
        if (from == rank_) {
          std::ranges::copy(own[next++], bytes.begin());
        } else if (!bytes.empty()) {
          MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, from, kData, data_,
                    &requests.emplace_back());
        }
      }
      for (const auto& [to, bytes] : sends) {
        if (to == rank_ || bytes.empty()) continue;
        MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, to, kData, data_,
                  &requests.emplace_back());
        bytes_sent_ += static_cast<int64_t>(bytes.size());
      }
    }
    // Others may need this processor: first yield, then sleep a little.
    for (int64_t tries = 0;; ++tries) {
      int done = 0;
      {
        const std::lock_guard lock(mutex_);
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
        if (done) return {};
        if (Status status = failure(); !status) {
          waits_ = true;
          return status;
        }
      }
      if (tries < 20000)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  int64_t bytes_sent() const override { return bytes_sent_; }

  void ask_to_stop() override {
    if (stop_.exchange(true)) return;
    const std::lock_guard lock(mutex_);
    send_to_all(Word::stop, "");
  }

  bool stop_asked() override { return stop_ || cannot_go_on_; }

  bool fail(const std::string& text) override {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    send_to_all(Word::failed, (waits_ ? "w" : "-") + text);
    return leads();
  }

  int end(int status) override {
    if (!ending_) {  // all come to here, and the signs of life go on until they do
      if (const Result<int64_t> worst = maximum(*this, status); !worst) {
        if (fail(worst.status().text())) tell(worst.status().text());
        status = 1;
      }
    }
    if (ending_) end_failed(status);
    thread_ = {};  // which ends it
    MPI_Finalize();
    return status;
  }

 private:
  struct Peer {
    std::string host;
    Clock::time_point heard;
    bool failed = false, silent = false, waits = false;  // waits: messages of it will never come
  };
  struct Letter {  // on its way
    std::string text;
    MPI_Request request = MPI_REQUEST_NULL;
    int to = 0;
  };

  std::string named(int rank) const { return fmt::format("rank {} ({})", rank, peers_[size_t(rank)].host); }

  Status failure() { return failure_.empty() ? Status() : Status::error(std::string(failure_)); }

  // ---- the thread

  void attend(const std::stop_token& quit) {
    const auto period = std::min<Clock::duration>(seconds(5), milliseconds(250 * timeout_));
    Clock::time_point sent = Clock::now() - period, awake = Clock::now();
    std::unique_lock lock(mutex_);
    while (!quit.stop_requested()) {
      const Clock::time_point now = Clock::now();
      if (now - sent >= period) {
        sent = now;
        send_to_all(Word::lives, "");
      }
      listen();
      // If this process itself was stopped, its peers' words may still be on their way.
      if (now - awake > period)
        for (Peer& peer : peers_) peer.heard = now;
      awake = now;
      look_for_silence();
      changed_.wait_for(lock, quit, kListens, [] { return false; });
    }
  }

  void listen() {
    std::erase_if(letters_, [](Letter& letter) {
      int done = 0;
      MPI_Test(&letter.request, &done, MPI_STATUS_IGNORE);
      return done != 0;
    });
    while (true) {
      int there = 0, bytes = 0;
      MPI_Status status;
      MPI_Iprobe(MPI_ANY_SOURCE, kControl, control_, &there, &status);
      if (!there) return;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      std::string text(static_cast<size_t>(bytes), '\0');
      const int from = status.MPI_SOURCE;
      MPI_Recv(text.data(), bytes, MPI_BYTE, from, kControl, control_, MPI_STATUS_IGNORE);
      Peer& peer = peers_[size_t(from)];
      peer.heard = Clock::now();
      const auto word = static_cast<Word>(text.at(0));
      if (word == Word::stop) stop_ = true;
      if (word == Word::over) over_ = true;
      if (word == Word::failed) {
        peer.failed = true;
        peer.waits = text.at(1) == 'w';
        cannot_go_on(fmt::format("{}: {}", named(from), text.substr(2)));
      }
      changed_.notify_all();
    }
  }

  // The main thread finds a failure at its next exchange. Where it does not come to one, this ends the process.
  void look_for_silence() {
    const auto limit = static_cast<double>(timeout_);
    for (int r = 0; r < size_ && !ending_; ++r) {
      Peer& peer = peers_[size_t(r)];
      if (r == rank_ || peer.failed || peer.silent || seconds_since(peer.heard) < limit) continue;
      peer.silent = true;
      cannot_go_on(fmt::format("{} has given no sign of life for {} s (--rank-timeout)", named(r), timeout_));
    }
    if (failed_since_ && !over_ && seconds_since(*failed_since_) > limit) {
      if (leads()) tell(failure_);
      abort_job(1);
    }
  }

  // The first reason is the one that is told.
  void cannot_go_on(const std::string& why) {
    if (failed_since_) return;
    failure_ = why;
    failed_since_ = Clock::now();
    cannot_go_on_ = true;
  }

  void send(Word word, std::string_view text, int to) {
    const auto same = [&](const Letter& each) {
      return each.to == to && each.text[0] == static_cast<char>(word);
    };
    if (word == Word::lives && std::ranges::any_of(letters_, same)) return;  // one on its way is enough
    Letter& letter = letters_.emplace_back();
    letter.text = static_cast<char>(word) + std::string(text.substr(0, kMostText));
    letter.to = to;
    MPI_Isend(letter.text.data(), static_cast<int>(letter.text.size()), MPI_BYTE, to, kControl, control_,
              &letter.request);
  }

  void send_to_all(Word word, std::string_view text) {
    for (int r = 0; r < size_; ++r)
      if (r != rank_) send(word, text, r);
  }

  // ---- the end

  // The lowest rank that is heard of.
  bool leads() const {
    for (int r = 0; r < rank_; ++r)
      if (!peers_[size_t(r)].silent) return false;
    return true;
  }

  // Ranks that have failed where they meet anyway end in order. Where one has failed alone, messages are under
  // way that nobody takes any more: then the launcher ends the job.
  void end_failed(int status) {
    std::unique_lock lock(mutex_);
    if (leads()) {
      const auto all_failed = [this] { return std::ranges::count(peers_, true, &Peer::failed) == size_ - 1; };
      bool in_order = changed_.wait_for(lock, kGrace, all_failed) && !waits_;
      for (const Peer& peer : peers_) in_order &= !peer.waits;
      if (!in_order) abort_job(status);
      send_to_all(Word::over, "");
    } else if (!changed_.wait_for(lock, seconds(timeout_) + kGrace, [this] { return over_; })) {
      abort_job(status);
    }
    for (Letter& letter : letters_) MPI_Wait(&letter.request, MPI_STATUS_IGNORE);
    letters_.clear();
  }

  // Ends the job; this process also ends when the launcher cannot be reached.
  [[noreturn]] void abort_job(int status) {
    std::fflush(nullptr);
    std::thread([status] {
      std::this_thread::sleep_for(kGrace);
      _exit(status);
    }).detach();
    MPI_Abort(MPI_COMM_WORLD, status);
    _exit(status);
  }

  const int64_t timeout_;
  int rank_ = 0, size_ = 1;
  int64_t bytes_sent_ = 0;
  std::atomic<bool> stop_ = false, cannot_go_on_ = false;

  // Under `mutex_`: the library, and all below.
  std::mutex mutex_;
  std::condition_variable_any changed_;
  MPI_Comm data_ = MPI_COMM_NULL, control_ = MPI_COMM_NULL;
  std::vector<Peer> peers_;
  std::list<Letter> letters_;
  std::string failure_;  // of a peer: why this rank cannot go on
  std::optional<Clock::time_point> failed_since_;
  bool waits_ = false;  // an exchange was given up
  bool over_ = false, ending_ = false;
  std::jthread thread_;
};

}  // namespace
}  // namespace gacc::mpi

extern "C" __attribute__((visibility("default"))) gacc::Collective* gacc_create_collective(
    int abi, const gacc::CollectiveOptions* options, std::string* error) {
  if (abi != gacc::kCollectiveAbi) return nullptr;
  auto collective = std::make_unique<gacc::mpi::MpiCollective>(*options);
  const gacc::Status status = collective->open();
  *error = status.text();
  return status ? collective.release() : nullptr;
}
