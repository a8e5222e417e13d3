"""Measures what a GPU can do, through the driver's functions: bandwidth, barriers, launches, latencies, copies in.
One JSON object a line: {"probe", "what", "value", "unit"}, or "error". Arguments: probe.py DRIVER small|full [PROBE]"""
import array
import ctypes
import json
import statistics
import sys

THREADS = 256
HEAD = """
	.reg .pred %p<4>; .reg .b32 %r<24>; .reg .b64 %d<16>;
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mov.u32 %r4, %nctaid.x;
	mad.lo.u32 %r5, %r2, %r3, %r1;
	mul.lo.u32 %r6, %r3, %r4;
	cvt.u64.u32 %d4, %r5;
	cvt.u64.u32 %d5, %r6;
"""


def vector(i):
    return "{" + ", ".join(f"%r{7 + 4 * i + part}" for part in range(4)) + "}"


# Parameters are 8 bytes each. A vector has 16 bytes; copy moves four of a thread at once, as long as there are so many.
KERNELS = f""".version 6.5
.target sm_75
.address_size 64
.visible .entry empty() {{ ret; }}

.visible .entry copy(.param .u64 from, .param .u64 to, .param .u64 vectors) {{{HEAD}
	ld.param.u64 %d1, [from];
	ld.param.u64 %d2, [to];
	ld.param.u64 %d3, [vectors];
	shl.b64 %d6, %d5, 4;          // from one vector of a thread to its next, in bytes
	shl.b64 %d7, %d4, 4;
	add.u64 %d1, %d1, %d7;
	add.u64 %d2, %d2, %d7;
	mul.lo.u64 %d8, %d5, 3;
FOUR:
	add.u64 %d11, %d4, %d8;
	setp.ge.u64 %p1, %d11, %d3;
	@%p1 bra REST;
{"".join(f'''	ld.global.v4.u32 {vector(i)}, [%d1];
	add.u64 %d1, %d1, %d6;
''' for i in range(4))}{"".join(f'''	st.global.v4.u32 [%d2], {vector(i)};
	add.u64 %d2, %d2, %d6;
''' for i in range(4))}	shl.b64 %d10, %d5, 2;
	add.u64 %d4, %d4, %d10;
	bra FOUR;
REST:
	setp.ge.u64 %p1, %d4, %d3;
	@%p1 bra DONE;
	ld.global.v4.u32 {{%r7, %r8, %r9, %r10}}, [%d1];
	st.global.v4.u32 [%d2], {{%r7, %r8, %r9, %r10}};
	add.u64 %d1, %d1, %d6;
	add.u64 %d2, %d2, %d6;
	add.u64 %d4, %d4, %d5;
	bra REST;
DONE:
	ret;
}}

// The grid barrier of merged kernels (codegen/gpu/merged_kernel.cpp), `turns` times.
.visible .entry barrier(.param .u64 counter, .param .u64 turns) {{{HEAD}
	ld.param.u64 %d1, [counter];
	ld.param.u32 %r8, [turns];
	sub.u32 %r5, 0x80000001, %r4;
	setp.eq.u32 %p1, %r2, 0;
	selp.u32 %r5, %r5, 1, %p1;
TURN:
	setp.eq.u32 %p1, %r8, 0;
	@%p1 bra DONE;
	bar.sync 0;
	setp.ne.u32 %p2, %r1, 0;
	@%p2 bra MET;
	atom.add.release.gpu.global.u32 %r6, [%d1], %r5;
WAIT:
	ld.acquire.gpu.global.u32 %r7, [%d1];
	xor.b32 %r7, %r7, %r6;
	setp.ge.s32 %p3, %r7, 0;
	@%p3 bra WAIT;
MET:
	bar.sync 0;
	sub.u32 %r8, %r8, 1;
	bra TURN;
DONE:
	ret;
}}

// Entry i of `count` (a power of two), 128 bytes each, holds the address of entry (i * times + plus) mod count: with
// times = 1 mod 4 and an odd plus, one ring of all entries.
.visible .entry links(.param .u64 table, .param .u64 count, .param .u64 times, .param .u64 plus) {{{HEAD}
	ld.param.u64 %d1, [table];
	ld.param.u64 %d2, [count];
	ld.param.u64 %d6, [times];
	ld.param.u64 %d7, [plus];
	setp.ge.u64 %p1, %d4, %d2;
	@%p1 bra DONE;
	mad.lo.u64 %d7, %d4, %d6, %d7;
	sub.u64 %d8, %d2, 1;
	and.b64 %d7, %d7, %d8;
	mad.lo.u64 %d9, %d7, 128, %d1;
	mad.lo.u64 %d10, %d4, 128, %d1;
	st.global.u64 [%d10], %d9;
DONE:
	ret;
}}

// From the entry whose address is at `place`, which then holds where it ended.
.visible .entry chain(.param .u64 place, .param .u64 steps) {{{HEAD}
	ld.param.u64 %d2, [place];
	ld.param.u32 %r1, [steps];
	ld.global.u64 %d1, [%d2];
STEP:
	ld.global.cg.u64 %d1, [%d1];
	sub.u32 %r1, %r1, 1;
	setp.ne.u32 %p1, %r1, 0;
	@%p1 bra STEP;
	st.global.u64 [%d2], %d1;
	ret;
}}
"""


class Failed(Exception):
    pass


class Gpu:
    """GPU 0 with one stream; memory lives as long as the process."""

    def __init__(self, library):
        self.library = ctypes.CDLL(library)
        self.call("cuInit", 0)
        if self.get("cuDeviceGetCount", ctypes.c_int) == 0:
            raise Failed("the NVIDIA driver finds no GPU")
        self.call("cuCtxSetCurrent", self.get("cuDevicePrimaryCtxRetain", ctypes.c_void_p, 0))
        self.stream = self.get("cuStreamCreate", ctypes.c_void_p, 1)
        self.module = self.get("cuModuleLoadDataEx", ctypes.c_void_p, KERNELS.encode(), 0, None, None)
        self.events = [self.get("cuEventCreate", ctypes.c_void_p, 0) for _ in range(2)]
        self.multiprocessors = self.attribute(16)

    def call(self, name, *arguments):
        if error := getattr(self.library, name)(*arguments):
            text = ctypes.c_char_p()
            self.library.cuGetErrorString(error, ctypes.byref(text))
            raise Failed(f"{name}: {(text.value or b'').decode()}")

    def get(self, name, kind, *arguments):
        """Returns what a function gives by its first parameter."""
        value = kind()
        self.call(name, ctypes.byref(value), *arguments)
        return value if kind is ctypes.c_void_p else value.value

    def attribute(self, which):
        return self.get("cuDeviceGetAttribute", ctypes.c_int, which, 0)

    def allocate(self, size):
        return self.get("cuMemAlloc_v2", ctypes.c_uint64, ctypes.c_size_t(size))

    def kernel(self, name):
        return self.get("cuModuleGetFunction", ctypes.c_void_p, self.module, name.encode())

    def launch(self, kernel, blocks, threads=THREADS, arguments=(), cooperative=False):
        values = [ctypes.c_uint64(one) for one in arguments]
        places = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(one) for one in values))
        size = (blocks, 1, 1, threads, 1, 1, 0, self.stream, places)
        if cooperative:
            self.call("cuLaunchCooperativeKernel", kernel, *size)
        else:
            self.call("cuLaunchKernel", kernel, *size, None)

    def copy_in(self, to, source, size):
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(to), source, ctypes.c_size_t(size), self.stream)

    def read(self, source, size):
        data = ctypes.create_string_buffer(size)
        self.wait()
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(source), ctypes.c_size_t(size))
        return data.raw

    def wait(self):
        self.call("cuStreamSynchronize", self.stream)

    def capture(self, work):
        self.call("cuStreamBeginCapture_v2", self.stream, 2)
        work()
        graph = ctypes.c_void_p()
        self.call("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        return self.get("cuGraphInstantiateWithFlags", ctypes.c_void_p, graph, ctypes.c_ulonglong(0))

    def seconds(self, work, times=1):
        """On the GPU, of one of `times` in a row (a graph of them, for Python is slow): the median, after a first."""
        if times > 1:
            graph = self.capture(lambda: [work() for _ in range(times)])
            work = lambda: self.call("cuGraphLaunch", graph, self.stream)
        work()
        found = []
        for _ in range(5):
            self.call("cuEventRecord", self.events[0], self.stream)
            work()
            self.call("cuEventRecord", self.events[1], self.stream)
            self.call("cuEventSynchronize", self.events[1])
            found.append(self.get("cuEventElapsedTime", ctypes.c_float, *self.events) / 1e3 / times)
        return statistics.median(found)


def bandwidth(gpu, small):
    """Copies of 16 bytes a thread by the best of some grids; reads and writes count both."""
    for where, size in (("", 1 << 16 if small else 1 << 30), (" in L2", 1 << 16 if small else 1 << 24)):
        source, to, copy = gpu.allocate(size), gpu.allocate(size), gpu.kernel("copy")
        gpu.copy_in(source, bytes(range(256)) * (size // 256), size)
        grids = [min(each * gpu.multiprocessors, size // 64 // THREADS) for each in (2, 4, 8)]
        work = [lambda blocks=blocks: gpu.launch(copy, blocks, THREADS, (source, to, size // 16)) for blocks in grids]
        best = max(2 * size / gpu.seconds(one, 2 if small else 10) for one in work)
        if gpu.read(to + size - 256, 256) != bytes(range(256)):
            raise Failed("the copy does not reach its end")
        yield f"copy{where}", best / 1e9, "GB/s"


def barrier(gpu, small):
    """Times a barrier of the whole grid, in a cooperative kernel, by blocks."""
    kernel, counter, turns = gpu.kernel("barrier"), gpu.allocate(256), 3 if small else 2000
    gpu.call("cuMemsetD8Async", ctypes.c_uint64(counter), 0, ctypes.c_size_t(256), gpu.stream)
    most = gpu.get("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.c_int, kernel, THREADS, ctypes.c_size_t(0))
    each = 1
    while each <= most:
        blocks = each if small else each * gpu.multiprocessors
        few, many = (gpu.seconds(lambda: gpu.launch(kernel, blocks, THREADS, (counter, n), True))
                     for n in (turns, 3 * turns))
        yield f"{blocks} blocks of {THREADS}", (many - few) / (2 * turns) * 1e6, "us"
        each *= 2


def launches(gpu, small):
    """From one launch of a graph to the next."""
    nodes, empty = 4 if small else 200, gpu.kernel("empty")
    for what, blocks, threads in (("one warp", 1, 32), ("a block an SM", gpu.multiprocessors, THREADS)):
        found = gpu.seconds(lambda: gpu.launch(empty, blocks, threads), nodes)
        yield f"an empty kernel of {what}, node of a graph", found * 1e6, "us"


def latency(gpu, small):
    """A chain of loads, each of which needs the one before, in lines of the cache."""
    times, plus, links, chain = 1664525, 1013904223, gpu.kernel("links"), gpu.kernel("chain")
    for where, size in (("L2", 1 << 12 if small else 1 << 23), ("DRAM", 1 << 14 if small else 1 << 30)):
        count, table, place = size // 128, gpu.allocate(size), gpu.allocate(256)
        gpu.launch(links, -(-count // THREADS), THREADS, (table, count, times, plus))
        gpu.copy_in(place, array.array("Q", [table]).tobytes(), 8)
        steps = min(count, 1 << 16)
        found = gpu.seconds(lambda: gpu.launch(chain, 1, 1, (place, steps)))
        entry = 0
        for _ in range(6 * steps):
            entry = (entry * times + plus) & (count - 1)
        if gpu.read(place, 8) != array.array("Q", [table + 128 * entry]).tobytes():
            raise Failed("the chain of loads does not end where it should")
        yield where, found / steps * 1e9, "ns"


def copy_in(gpu, small):
    """From page-locked memory: labels, images and tokens of a micro-batch."""
    for size in (128, 100352, 100352 if small else 64 << 20):
        to, source = gpu.allocate(size), gpu.get("cuMemHostAlloc", ctypes.c_void_p, ctypes.c_size_t(size), 0)
        found = gpu.seconds(lambda: gpu.copy_in(to, source, size), 2 if small else 20)
        yield f"{size} bytes", found * 1e6, "us"


PROBES = {"bandwidth": bandwidth, "barrier": barrier, "launches": launches, "latency": latency, "copy-in": copy_in}


def say(**line):
    print(json.dumps(line), flush=True)


def main(driver, size, *only):
    try:
        gpu = Gpu(driver)
        name = ctypes.create_string_buffer(256)
        gpu.call("cuDeviceGetName", name, 255, 0)
        path = next((line.split()[-1] for line in open("/proc/self/maps") if "/" in line and
                     line.split("/")[-1].startswith(("libcuda", "libgacc-emu"))), driver)
        say(probe="machine", what=name.value.decode(), capability=10 * gpu.attribute(75) + gpu.attribute(76),
            multiprocessors=gpu.multiprocessors, cuda=gpu.get("cuDriverGetVersion", ctypes.c_int), driver=path)
    except (OSError, Failed) as error:
        say(probe="machine", error=str(error))
        return 1
    for probe in only or PROBES:
        try:
            for what, value, unit in PROBES[probe](gpu, size == "small"):
                say(probe=probe, what=what, value=value, unit=unit)
        except Failed as error:
            say(probe=probe, error=str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
