// The probe's kernels, written by hand. Parameters are 8 bytes each, as gacc's own. "vectors" are of 16
// bytes.
#pragma once
#include <string>

namespace gacc::probe {

// Of the kernels that go through all vectors of %d1: the thread's place in it, and the way to its next vector.
inline constexpr const char* kEachVector = R"ptx({
	.reg .pred %p<2>; .reg .b32 %r<24>; .reg .b64 %d<16>;
	ld.param.u64 %d1, [from];
	ld.param.u64 %d2, [to];
	ld.param.u64 %d3, [vectors];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mov.u32 %r4, %nctaid.x;
	mad.lo.u32 %r5, %r2, %r3, %r1;
	mul.lo.u32 %r6, %r3, %r4;
	cvt.u64.u32 %d4, %r5;
	cvt.u64.u32 %d5, %r6;
	shl.b64 %d6, %d5, 4;          // from one vector of a thread to its next, in bytes
	shl.b64 %d7, %d4, 4;
	add.u64 %d1, %d1, %d7;
	mul.lo.u64 %d8, %d5, 3;
	shl.b64 %d9, %d6, 2;
	shl.b64 %d10, %d5, 2;
)ptx";

// Four vectors of a thread on the way at once, as long as there are so many.
inline constexpr const char* kLoadFour = R"ptx(
FOUR:
	add.u64 %d11, %d4, %d8;
	setp.ge.u64 %p1, %d11, %d3;
	@%p1 bra REST;
	add.u64 %d12, %d1, %d6;
	add.u64 %d13, %d12, %d6;
	add.u64 %d14, %d13, %d6;
	ld.global.v4.u32 {%r7, %r8, %r9, %r10}, [%d1];
	ld.global.v4.u32 {%r11, %r12, %r13, %r14}, [%d12];
	ld.global.v4.u32 {%r15, %r16, %r17, %r18}, [%d13];
	ld.global.v4.u32 {%r19, %r20, %r21, %r22}, [%d14];
)ptx";

inline const std::string kKernels = std::string(R"ptx(
.version 6.5
.target sm_75
.address_size 64

.visible .entry probe_copy(.param .u64 from, .param .u64 to, .param .u64 vectors)
)ptx") + kEachVector + R"ptx(
	add.u64 %d2, %d2, %d7;
)ptx" + kLoadFour + R"ptx(
	add.u64 %d12, %d2, %d6;
	add.u64 %d13, %d12, %d6;
	add.u64 %d14, %d13, %d6;
	st.global.v4.u32 [%d2], {%r7, %r8, %r9, %r10};
	st.global.v4.u32 [%d12], {%r11, %r12, %r13, %r14};
	st.global.v4.u32 [%d13], {%r15, %r16, %r17, %r18};
	st.global.v4.u32 [%d14], {%r19, %r20, %r21, %r22};
	add.u64 %d1, %d1, %d9;
	add.u64 %d2, %d2, %d9;
	add.u64 %d4, %d4, %d10;
	bra FOUR;
REST:
	setp.ge.u64 %p1, %d4, %d3;
	@%p1 bra DONE;
	ld.global.v4.u32 {%r7, %r8, %r9, %r10}, [%d1];
	st.global.v4.u32 [%d2], {%r7, %r8, %r9, %r10};
	add.u64 %d1, %d1, %d6;
	add.u64 %d2, %d2, %d6;
	add.u64 %d4, %d4, %d5;
	bra REST;
DONE:
	ret;
}

// As the copy, but nothing is stored, unless all bits of a thread's vectors cancel out.
.visible .entry probe_read(.param .u64 from, .param .u64 to, .param .u64 vectors)
)ptx" + kEachVector + R"ptx(
	mov.u32 %r23, 1;
)ptx" + kLoadFour + R"ptx(
	xor.b32 %r7, %r7, %r8;
	xor.b32 %r9, %r9, %r10;
	xor.b32 %r11, %r11, %r12;
	xor.b32 %r13, %r13, %r14;
	xor.b32 %r15, %r15, %r16;
	xor.b32 %r17, %r17, %r18;
	xor.b32 %r19, %r19, %r20;
	xor.b32 %r21, %r21, %r22;
	xor.b32 %r7, %r7, %r9;
	xor.b32 %r11, %r11, %r13;
	xor.b32 %r15, %r15, %r17;
	xor.b32 %r19, %r19, %r21;
	xor.b32 %r7, %r7, %r11;
	xor.b32 %r15, %r15, %r19;
	xor.b32 %r7, %r7, %r15;
	xor.b32 %r23, %r23, %r7;
	add.u64 %d1, %d1, %d9;
	add.u64 %d4, %d4, %d10;
	bra FOUR;
REST:
	setp.ne.u32 %p1, %r23, 0;
	@%p1 bra DONE;
	st.global.u32 [%d2], %r23;
DONE:
	ret;
}

// The grid barrier of merged kernels (codegen/gpu/merged_kernel.cpp), `turns` times.
.visible .entry probe_barrier(.param .u64 counter, .param .u64 turns)
{
	.reg .pred %p<4>; .reg .b32 %r<10>; .reg .b64 %d<4>;
	ld.param.u64 %d1, [counter];
	ld.param.u32 %r1, [turns];
	mov.u32 %r2, %tid.x;
	mov.u32 %r3, %ctaid.x;
	mov.u32 %r4, %nctaid.x;
	sub.u32 %r5, 0x80000001, %r4;
	setp.eq.u32 %p1, %r3, 0;
	selp.u32 %r5, %r5, 1, %p1;
TURN:
	setp.eq.u32 %p1, %r1, 0;
	@%p1 bra DONE;
	bar.sync 0;
	setp.ne.u32 %p2, %r2, 0;
	@%p2 bra MET;
	atom.add.release.gpu.global.u32 %r6, [%d1], %r5;
WAIT:
	ld.acquire.gpu.global.u32 %r7, [%d1];
	xor.b32 %r7, %r7, %r6;
	setp.ge.s32 %p3, %r7, 0;
	@%p3 bra WAIT;
MET:
	bar.sync 0;
	sub.u32 %r1, %r1, 1;
	bra TURN;
DONE:
	ret;
}

.visible .entry probe_empty()
{
	ret;
}

// Entry i of `count` (a power of two), `stride` bytes each, holds the address of entry (i * times + plus) mod
// count: with times = 1 mod 4 and an odd plus, one ring of all entries.
.visible .entry probe_links(.param .u64 table, .param .u64 count, .param .u64 stride, .param .u64 times,
                            .param .u64 plus)
{
	.reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %d<12>;
	ld.param.u64 %d1, [table];
	ld.param.u64 %d2, [count];
	ld.param.u64 %d3, [stride];
	ld.param.u64 %d4, [times];
	ld.param.u64 %d5, [plus];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %ctaid.x;
	mov.u32 %r3, %ntid.x;
	mad.lo.u32 %r4, %r2, %r3, %r1;
	cvt.u64.u32 %d6, %r4;
	setp.ge.u64 %p1, %d6, %d2;
	@%p1 bra DONE;
	mad.lo.u64 %d7, %d6, %d4, %d5;
	sub.u64 %d8, %d2, 1;
	and.b64 %d7, %d7, %d8;
	mad.lo.u64 %d9, %d7, %d3, %d1;
	mad.lo.u64 %d10, %d6, %d3, %d1;
	st.global.u64 [%d10], %d9;
DONE:
	ret;
}

// From the entry whose address is at `place`, which then holds where it ended.
.visible .entry probe_chain(.param .u64 place, .param .u64 steps)
{
	.reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %d<4>;
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
}
)ptx";

}  // namespace gacc::probe
