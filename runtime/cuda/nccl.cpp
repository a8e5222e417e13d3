#include "runtime/cuda/nccl.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/cuda/libraries.h"

namespace gacc::cuda {
namespace {

constexpr unsigned kThreads = 256, kMostBlocks = 1024;

// Rows of `count` words: left = right (mode 0), left + right as f32 (1) or as i32 (2), or left * kept + right,
// rounded twice (3).
constexpr const char* kSumsPtx = R"(.version 6.4
.target sm_75
.address_size 64

.visible .entry gacc_rank_sums(
  .param .u64 p_left,
  .param .u64 p_right,
  .param .u64 p_count,
  .param .u32 p_mode,
  .param .f32 p_kept
)
{
  .reg .pred %p<6>;
  .reg .b32 %r<12>;
  .reg .f32 %f<8>;
  .reg .b64 %rd<12>;

  ld.param.u64 %rd1, [p_left];
  ld.param.u64 %rd2, [p_right];
  ld.param.u64 %rd3, [p_count];
  ld.param.u32 %r1, [p_mode];
  ld.param.f32 %f1, [p_kept];
  cvta.to.global.u64 %rd1, %rd1;
  cvta.to.global.u64 %rd2, %rd2;
  mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x;
  mov.u32 %r4, %tid.x;
  mov.u32 %r5, %nctaid.x;
  mad.lo.s32 %r6, %r2, %r3, %r4;
  mul.lo.s32 %r7, %r5, %r3;
  cvt.u64.u32 %rd4, %r6;
  cvt.u64.u32 %rd5, %r7;
LOOP:
  setp.ge.u64 %p1, %rd4, %rd3;
  @%p1 bra DONE;
  shl.b64 %rd6, %rd4, 2;
  add.s64 %rd7, %rd1, %rd6;
  add.s64 %rd8, %rd2, %rd6;
  ld.global.b32 %r8, [%rd8];
  setp.eq.s32 %p2, %r1, 0;
  @%p2 bra STORE;
  ld.global.b32 %r9, [%rd7];
  setp.eq.s32 %p3, %r1, 2;
  @%p3 bra INTEGER;
  mov.b32 %f2, %r8;
  mov.b32 %f3, %r9;
  setp.eq.s32 %p4, %r1, 1;
  @%p4 bra SUM;
  mul.rn.f32 %f3, %f3, %f1;
SUM:
  add.rn.f32 %f4, %f3, %f2;
  mov.b32 %r8, %f4;
  bra STORE;
INTEGER:
  add.s32 %r8, %r9, %r8;
STORE:
  st.global.b32 [%rd7], %r8;
  add.s64 %rd4, %rd4, %rd5;
  bra LOOP;
DONE:
  ret;
}
)";
enum Mode : int { kCopy = 0, kAdd = 1, kAddIntegers = 2, kAddKept = 3 };

class NcclLink final : public DeviceLink {
 public:
  explicit NcclLink(const NcclPlace& place) : place_(place) {}
  ~NcclLink() override {
    // A call that waits for a lost peer would wait for ever.
    if (communicator_ != nullptr) nccl_.abort(communicator_);
    if (module_ != nullptr) place_.driver.module_unload(module_);
  }

  Status open() {
    GACC_TRY(nccl_.open(place_.emulator != nullptr));
    const InContext within = enter();
    GACC_TRY(within.status());
    GACC_TRY(check(place_.driver.module_load(&module_, kSumsPtx, 0, nullptr, nullptr)));
    return check(place_.driver.module_function(&function_, module_, "gacc_rank_sums"));
  }

  std::string name() const override {
    int version = 0;  // 22809: major of one digit, then minor and patch of two
    nccl_.version(&version);
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }
  std::string gpu() const override { return place_.gpu; }

  Status make_id(std::string& id) override {
    NcclId made{};
    Status status = check_nccl(nccl_.make_id(&made), "cannot make an id");
    id.assign(made.bytes, sizeof made.bytes);
    return status;
  }
  Status join(const std::string& id, int rank, int ranks) override {
    NcclId of{};
    if (id.size() != sizeof of.bytes) return Status::error("internal error: an id of {} bytes", id.size());
    std::memcpy(of.bytes, id.data(), id.size());
    const InContext within = enter();
    GACC_TRY(within.status());
    GACC_TRY(check_nccl(nccl_.join(&communicator_, ranks, of, rank), "cannot connect the GPUs of the ranks"));
    return place_.joined();
  }

  void lend(int64_t offset, int64_t bytes) override {
    if (place_.emulator != nullptr)
      place_.emulator->declare_live(place_.arena, offset, bytes, "sums of ranks");
  }

  Status begin() override {
    place_.changes();
    const InContext within = enter();
    GACC_TRY(within.status());
    return check_nccl(nccl_.group_start(), "cannot send");
  }
  Status send(int64_t offset, int64_t numbers, int to) override {
    const InContext within = enter();
    GACC_TRY(within.status());
    return check_nccl(nccl_.send(pointer(offset), static_cast<size_t>(numbers), kNcclUint32, to,
                                 communicator_, place_.stream),
                      "cannot send");
  }
  Status receive(int64_t offset, int64_t numbers, int from) override {
    const InContext within = enter();
    GACC_TRY(within.status());
    return check_nccl(nccl_.receive(pointer(offset), static_cast<size_t>(numbers), kNcclUint32, from,
                                    communicator_, place_.stream),
                      "cannot receive");
  }
  Status end() override {
    const InContext within = enter();
    GACC_TRY(within.status());
    return check_nccl(nccl_.group_end(), "the exchange with other ranks failed");
  }

  Status copy(int64_t to, int64_t from, int64_t numbers) override {
    return launch(to, from, numbers, kCopy, 1);
  }
  Status add(int64_t left, int64_t right, int64_t numbers, bool integer, float kept) override {
    return launch(left, right, numbers, kept != 1 ? kAddKept : integer ? kAddIntegers : kAdd, kept);
  }

 private:
  InContext enter() const { return {place_.driver, place_.context}; }
  void* pointer(int64_t offset) const {
    return reinterpret_cast<void*>(place_.arena + static_cast<Pointer>(offset));
  }
  Status check(int error) const { return place_.driver.check(error, "cannot add the sums of ranks"); }
  Status check_nccl(int error, std::string_view what) const {
    return error == 0 ? Status() : Status::error("{}: NCCL: {}", what, nccl_.error_string(error));
  }

  Status launch(int64_t left, int64_t right, int64_t numbers, Mode mode, float kept) {
    const InContext within = enter();
    GACC_TRY(within.status());
    if (place_.emulator != nullptr)  // no value of a program lives now
      GACC_TRY(place_.emulator->values(place_.stream, place_.arena, {}));
    Pointer to = place_.arena + static_cast<Pointer>(left), from = place_.arena + static_cast<Pointer>(right);
    auto count = static_cast<uint64_t>(numbers);
    int how = mode;
    void* parameters[] = {&to, &from, &count, &how, &kept};
    const auto blocks = static_cast<unsigned>(
        std::min<int64_t>((numbers + kThreads - 1) / kThreads, static_cast<int64_t>(kMostBlocks)));
    return check(
        place_.driver.launch(function_, blocks, 1, 1, kThreads, 1, 1, 0, place_.stream, parameters, nullptr));
  }

  NcclPlace place_;
  NcclLibrary nccl_;
  ncclComm* communicator_ = nullptr;
  Module module_ = nullptr;
  Function function_ = nullptr;
};

}  // namespace

Status NcclLibrary::open(bool emulated) {
  void* library = nullptr;  // stays loaded
  for (const std::string& place : places_of(kNcclLibrary))
    if (library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL); library != nullptr) break;
  if (library == nullptr) return Status::error("NCCL is not installed ({})", kNcclLibrary);
  if (emulated && dlsym(library, "gacc_emulated_nccl") == nullptr)
    return Status::error("{} is for GPUs, not for the emulator", kNcclLibrary);
  Symbols symbols(library);
#define GACC_NCCL_FIND(member, symbol, parameters) symbols.find(member, #symbol);
  GACC_NCCL_FUNCTIONS(GACC_NCCL_FIND)
#undef GACC_NCCL_FIND
  symbols.find(error_string, "ncclGetErrorString");
  return symbols.missing() == nullptr ? Status() : Status::error("{} is too old", kNcclLibrary);
}

Status open_nccl(const NcclPlace& place, std::unique_ptr<DeviceLink>& link) {
  auto opened = std::make_unique<NcclLink>(place);
  GACC_TRY(opened->open());
  link = std::move(opened);
  return {};
}

}  // namespace gacc::cuda
