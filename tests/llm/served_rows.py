"""Served rows as tables and benchmarks of servers have them."""

from __future__ import annotations

from typing import Any

SERVED = (
    "model,device,input_tokens,output_tokens,concurrency,tensor_parallel,tpot_ms,ttft_ms,dtype\n"
)
VLLM: dict[str, Any] = {
    "date": "20261001-101500", "endpoint_type": "openai", "backend": "vllm", "label": None,
    "model_id": "Qwen/Qwen3-32B", "tokenizer_id": "Qwen/Qwen3-32B", "num_prompts": 200,
    "tensor_parallel": "2", "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 50,
    "duration": 71.3, "completed": 200, "failed": 0, "total_input_tokens": 400000,
    "total_output_tokens": 100000, "request_throughput": 2.8, "request_goodput": None,
    "max_concurrent_requests": 55, "mean_ttft_ms": 700.5, "median_ttft_ms": 650.0, "mean_tpot_ms": 34.25,
    "p99_tpot_ms": 36.0, "mean_itl_ms": 34.2,
}  # fmt: skip
"""Keys that `vllm bench serve --save-result --metadata tensor_parallel=2` writes."""
SGLANG: dict[str, Any] = {
    "tag": None, "backend": "sglang", "request_rate": float("inf"), "max_concurrency": 16,
    "random_input_len": 1024, "random_output_len": 256,
    "server_info": {"model_path": "qwen3-32b", "tp_size": 4, "dp_size": 1}, "completed": 64,
    "total_input_tokens": 65536, "total_output_tokens": 16384, "total_output_tokens_retokenized": 16380,
    "mean_ttft_ms": 210.0, "median_ttft_ms": 200.0, "mean_tpot_ms": 26.5, "p99_tpot_ms": 29.0,
    "mean_itl_ms": 26.4, "concurrency": 15.7, "accept_length": None,
}  # fmt: skip
"""Keys that SGLang's bench_serving adds to its file, a line for each run."""
