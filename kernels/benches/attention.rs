//! Attention at the shape of SmolLM2-135M (9 heads over 3, of 64): multiply-adds a second for prefill (Gelem/s reads as
//! GMAC/s), bytes of keys and values a second for decoding.

use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use headstart_kernels::{CpuPath, attention, in_pool, with_path};

const HEADS: usize = 9;
const KV_HEADS: usize = 3;
const DIM: usize = 64;

fn bench(c: &mut Criterion) {
    for path in CpuPath::ALL.into_iter().rev().filter(|p| p.available()) {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let mut group = c.benchmark_group(format!("{path}/{dtype:?}"));
            for (queries, keys) in [
                (512, 512),
                (512, 4096),
                (4096, 4096),
                (1, 512),
                (1, 4096),
                (4, 4096),
            ] {
                let random = |shape| -> candle_core::Result<Tensor> {
                    Tensor::rand(-1f32, 1f32, shape, &Device::Cpu)?.to_dtype(dtype)
                };
                let tensors = (
                    random((queries, HEADS, DIM)),
                    random((KV_HEADS, keys + 64, DIM)).and_then(|t| t.narrow(1, 0, keys)),
                    random((KV_HEADS, keys + 64, DIM)).and_then(|t| t.narrow(1, 0, keys)),
                );
                let (Ok(q), Ok(k), Ok(v)) = tensors else {
                    continue;
                };
                let k_positions: Vec<u32> = (0..keys as u32).collect();
                let q_positions = &k_positions[keys - queries..];
                let seen: u64 = q_positions.iter().map(|&p| u64::from(p) + 1).sum();
                group.throughput(if queries <= 8 {
                    Throughput::Bytes((2 * KV_HEADS * keys * DIM * dtype.size_in_bytes()) as u64)
                } else {
                    Throughput::Elements(seen * (2 * HEADS * DIM) as u64)
                });
                group.bench_function(BenchmarkId::new(format!("{queries} over"), keys), |b| {
                    b.iter_custom(|iterations| {
                        let run = || {
                            let start = Instant::now();
                            for _ in 0..iterations {
                                let out =
                                    attention(&q, &k, &v, q_positions, &k_positions, 0.125, None);
                                assert!(out.is_ok());
                            }
                            start.elapsed()
                        };
                        in_pool(|| with_path(path, run)).unwrap_or_default()
                    });
                });
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = bench
}
criterion_main!(benches);
