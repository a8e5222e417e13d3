// The messages of ranks, the processes that train one model together. The class itself is the one
// rank of a run without a launcher; MPI's is the plug-in libgacc-mpi.so (runtime/mpi/), which is loaded only
// where a launcher has started more than one.
//
// All ranks call the same operations in the same order. Each waits for its peers, and fails where one of them
// has failed or has given no sign of life for too long; after that nothing but fail() and end() may be
// called.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/status.h"

namespace gacc {

// A message to a rank, and one from a rank. What one rank sends another comes in the order in which it was
// sent; both sides know the sizes.
struct Outgoing {
  int rank = 0;
  std::span<const std::byte> bytes{};
};
struct Incoming {
  int rank = 0;
  std::span<std::byte> bytes{};
};
using Sends = std::span<const std::span<const std::byte>>;  // one a rank
using Receives = std::span<const std::span<std::byte>>;

struct CollectiveOptions {
  int64_t timeout = 60;  // seconds without a sign of life, after which a peer counts as lost
};

class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const { return 0; }
  virtual int size() const { return 1; }
  // Sends all of these messages, and receives all of those. A rank may write to itself.
  virtual Status exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives) {
    for (size_t i = 0; i < sends.size(); ++i) std::ranges::copy(sends[i].bytes, receives[i].bytes.begin());
    return {};
  }
  // Bytes that `exchange` has sent to other ranks.
  virtual int64_t bytes_sent() const { return 0; }

  // Tells all ranks, whatever they are doing, that this one was asked to end the run in order; and whether
  // any rank was, as far as this one has heard. Not an operation: what ranks do about it they have to agree
  // on by `maximum`.
  virtual void ask_to_stop() { stop_ = true; }
  virtual bool stop_asked() { return stop_; }

  // This rank cannot go on. Tells the others; true where this rank is the one to tell the user. `end`
  // follows.
  virtual bool fail(const std::string& /*text*/) { return true; }
  // The last call: waits until all ranks have ended, in order or (after `fail`) not, and returns the exit
  // status. Ranks that do not come are ended.
  virtual int end(int status) { return status; }

 private:
  bool stop_ = false;
};

// sends[r] goes to rank r, and receives[r] comes from it.
Status all_to_all(Collective& ranks, Sends sends, Receives receives);
// Everything of every rank: all[r] is rank r's `mine`.
Status all_gather(Collective& ranks, std::span<const std::byte> mine, Receives all);
Result<std::vector<std::string>> all_gather(Collective& ranks, std::string_view mine);
// The largest of the ranks' values.
Result<int64_t> maximum(Collective& ranks, int64_t value);
// Rank 0's text on every rank.
Result<std::string> broadcast(Collective& ranks, const std::string& text);

// Facts that ranks must agree on before the first launch, as name and value.
using Facts = std::vector<std::pair<std::string, std::string>>;
// The same answer on all ranks: an error where one has failed (`mine`), or where one's facts are not those of
// rank 0; it names that rank, unless all say the same.
Status agree(Collective& ranks, const Status& mine, const Facts& facts);

// The plug-in exports this symbol; null when the ABI differs. Where MPI cannot start, `error` says why.
constexpr int kCollectiveAbi = 2;
extern "C" {
using gacc_create_collective_fn = Collective* (*)(int abi, const CollectiveOptions* options,
                                                  std::string* error);
}

}  // namespace gacc
