// NCCL for the emulator, whose memory it reaches by the driver's calls: ranks of one machine send files to each
// other, in a folder that the id names. It runs what is sent and received when the group ends.
#include <dlfcn.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

using Stream = struct CUstream_st*;

struct Id {
  char bytes[128];
};

struct ncclComm {
  std::filesystem::path folder;
  int rank = 0, ranks = 1;
  std::map<int, int> sent, received;  // messages, by peer
};

namespace {

struct Message {
  bool send = false;
  void* at = nullptr;
  size_t bytes = 0;
  int peer = 0;
  ncclComm* communicator = nullptr;
  Stream stream = nullptr;
};
std::vector<Message> group;

template <class Function>
Function driver(const char* name) {
  static void* const library = dlopen("libgacc-emu.so", RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

std::filesystem::path file(const ncclComm& of, int from, int to, int number) {
  return of.folder / (std::to_string(from) + "-" + std::to_string(to) + "-" + std::to_string(number));
}

int run(const Message& message) {
  ncclComm& all = *message.communicator;
  std::string bytes(message.bytes, '\0');
  const auto address = reinterpret_cast<unsigned long long>(message.at);
  if (message.send) {
    const auto read = driver<int (*)(void*, unsigned long long, size_t, Stream)>("cuMemcpyDtoHAsync_v2");
    if (read == nullptr || read(bytes.data(), address, bytes.size(), message.stream) != 0) return 1;
    const auto to = file(all, all.rank, message.peer, all.sent[message.peer]++);
    std::ofstream(to.string() + "-part", std::ios::binary) << bytes;
    std::filesystem::rename(to.string() + "-part", to);
    return 0;
  }
  const auto from = file(all, message.peer, all.rank, all.received[message.peer]++);
  while (!std::filesystem::exists(from)) std::this_thread::sleep_for(std::chrono::microseconds(200));
  if (std::filesystem::file_size(from) != bytes.size()) return 4;  // the two ranks mean different messages
  std::ifstream(from, std::ios::binary).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  std::filesystem::remove(from);
  const auto write = driver<int (*)(unsigned long long, const void*, size_t, Stream)>("cuMemcpyHtoDAsync_v2");
  return write == nullptr || write(address, bytes.data(), bytes.size(), message.stream) != 0 ? 1 : 0;
}

}  // namespace

EXPORT int gacc_emulated_nccl() { return 1; }

EXPORT int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
EXPORT const char* ncclGetErrorString(int error) {
  return error == 4 ? "messages of different sizes" : "unhandled cuda error";
}
EXPORT int ncclGetUniqueId(Id* id) {
  std::string folder = (std::filesystem::temp_directory_path() / "gacc-nccl-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr || folder.size() >= sizeof id->bytes) return 2;
  std::memcpy(id->bytes, folder.c_str(), folder.size() + 1);
  return 0;
}
EXPORT int ncclCommInitRank(ncclComm** communicator, int ranks, Id id, int rank) {
  *communicator = new ncclComm{id.bytes, rank, ranks, {}, {}};
  return 0;
}
EXPORT int ncclCommAbort(ncclComm* communicator) {
  std::error_code ignored;
  std::filesystem::remove(communicator->folder, ignored);  // the last one finds it empty
  delete communicator;
  return 0;
}
EXPORT int ncclGroupStart() {
  group.clear();
  return 0;
}
EXPORT int ncclSend(const void* from, size_t count, int type, int to, ncclComm* communicator, Stream stream) {
  if (type != 3) return 4;
  group.push_back({true, const_cast<void*>(from), 4 * count, to, communicator, stream});
  return 0;
}
EXPORT int ncclRecv(void* to, size_t count, int type, int from, ncclComm* communicator, Stream stream) {
  if (type != 3) return 4;
  group.push_back({false, to, 4 * count, from, communicator, stream});
  return 0;
}
EXPORT int ncclGroupEnd() {
  for (const bool send : {true, false})
    for (const Message& message : group)
      if (message.send == send)
        if (const int error = run(message); error != 0) return error;
  return 0;
}
