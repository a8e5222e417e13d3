// Small kernels written for testing the emulator, independently of gacc's code generator. kernels.ptx is what
// nvcc made of this file; scripts in ../README.md say how. Nothing here is built by gacc's build.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" {

// Sum of n floats: warp shuffles, then shared memory, one atomic a block.
__global__ void reduce_sum(const float* x, int n, float* out) {
  __shared__ float part[32];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
  for (int d = 16; d > 0; d >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, d);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f;
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (threadIdx.x == 0) atomicAdd(out, sum);
  }
}

// Inclusive scan of one block's ints (Hillis-Steele in shared memory, double buffered).
__global__ void scan(const int* x, int* y) {
  extern __shared__ int buffer[];
  int t = threadIdx.x, n = blockDim.x, in = 0;
  buffer[t] = x[t];
  __syncthreads();
  for (int d = 1; d < n; d <<= 1) {
    int v = buffer[in * n + t];
    if (t >= d) v += buffer[in * n + t - d];
    in ^= 1;
    buffer[in * n + t] = v;
    __syncthreads();
  }
  y[t] = buffer[in * n + t];
}

// Counts of byte values: shared atomics, then global ones.
__global__ void histogram(const unsigned char* x, int n, unsigned* counts) {
  __shared__ unsigned local[256];
  for (int i = threadIdx.x; i < 256; i += blockDim.x) local[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[x[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < 256; i += blockDim.x)
    if (local[i]) atomicAdd(&counts[i], local[i]);
}

// c = a b, n x n, 16x16 tiles.
__global__ void matmul(const float* a, const float* b, float* c, int n) {
  __shared__ float sa[16][16], sb[16][16];
  int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
  float sum = 0;
  for (int k = 0; k < n; k += 16) {
    sa[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
    sb[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
    __syncthreads();
    for (int i = 0; i < 16; ++i) sum = fmaf(sa[threadIdx.y][i], sb[i][threadIdx.x], sum);
    __syncthreads();
  }
  c[row * n + column] = sum;
}

// One warp: c [16, 8] = a [16, 16] b [16, 8] in f16 with f32 sums; cp.async, ldmatrix, mma.
__global__ void mma_tile(const half* a, const half* b, float* c) {
  __shared__ __align__(16) half sa[16 * 16], sb[16 * 8];
  int l = threadIdx.x;
  unsigned to = (unsigned)__cvta_generic_to_shared(sa + l * 8);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(a + l * 8));
  if (l < 16) {
    to = (unsigned)__cvta_generic_to_shared(sb + l * 8);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(b + l * 8));
  }
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;");
  __syncthreads();
  unsigned fa[4], fb[2];
  float d[4] = {0, 0, 0, 0};
  unsigned at = (unsigned)__cvta_generic_to_shared(sa + (l % 16) * 16 + l / 16 * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3]) : "r"(at));
  at = (unsigned)__cvta_generic_to_shared(sb + (l % 16) * 8);
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(fb[0]), "=r"(fb[1]) : "r"(at));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
  int row = l / 4, column = l % 4 * 2;
  c[row * 8 + column] = d[0], c[row * 8 + column + 1] = d[1];
  c[(row + 8) * 8 + column] = d[2], c[(row + 8) * 8 + column + 1] = d[3];
}

// y = a x + y in f16 pairs.
__global__ void axpy_half(const half2* x, half2* y, float a, int pairs) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < pairs) y[i] = __hfma2(__float2half2_rn(a), x[i], y[i]);
}

// bf16 to f32 and back with a scale.
__global__ void scale_bf16(const __nv_bfloat16* x, __nv_bfloat16* y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __float2bfloat16(a * __bfloat162float(x[i]));
}

// Keeps the positive numbers of a block, in order; the ballot gives each lane its place.
__global__ void compact(const int* x, int* y, int* count) {
  __shared__ int base[33];
  int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  bool keep = x[t] > 0;
  unsigned ballot = __ballot_sync(~0u, keep);
  if (lane == 0) base[warp + 1] = __popc(ballot);
  __syncthreads();
  if (t == 0) {
    base[0] = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) base[w + 1] += base[w];
    *count = base[blockDim.x / 32];
  }
  __syncthreads();
  if (keep) y[base[warp] + __popc(ballot & ((1u << lane) - 1))] = x[t];
}

__device__ void grid_barrier(unsigned* arrived, unsigned target) {
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
    unsigned seen;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
    while (seen < target);
  }
  __syncthreads();
}
// Cooperative: each round every thread takes its left neighbour's value over the whole grid.
__global__ void rotate(int* x, int* y, unsigned* arrived, int rounds) {
  int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
  for (int k = 0; k < rounds; ++k) {
    int* from = k % 2 ? y : x;
    int* to = k % 2 ? x : y;
    to[i] = from[(i + n - 1) % n];
    grid_barrier(arrived, (k + 1) * gridDim.x);
  }
}
// The last block to finish adds up what the others wrote (fence and counter).
__global__ void last_block(const float* x, float* parts, unsigned* done, float* out) {
  __shared__ bool last;
  float sum = x[blockIdx.x * 32 + threadIdx.x];
  for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(~0u, sum, d);
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = sum;
    __threadfence();
    last = atomicInc(done, gridDim.x) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float all = 0;
    for (unsigned b = 0; b < gridDim.x; ++b) all += parts[b];
    *out = all;
  }
}

}
