. /tmp/b4/t45/l.sh
x(){ echo; echo "\$ lolat $*"; TIMEFORMAT='u+s %U %S'; time /work/main/.venv/bin/python -m lolat "$@" 2>&1; }
y(){ echo; echo "\$ lolat $*"; /work/main/.venv/bin/python -m lolat "$@" 2>&1; echo "rc=$?"; }
x cost h100-vllm llama-3.1-8b --sequence-length 2048 --batch-size 1 --tokens 100e6
y cost h100-vllm llama-3.1-8b --sequence-length 2048 --batch-size 1 --tokens 100e6 --optimizer adamw8bit --precision bf16 --checkpointing full
y cost llama-3.1-8b --sequence-length 2048 --batch-size auto --tokens 100e6 --tune lora:16 --max-dollars 100
y cost llama-3.1-8b --sequence-length 2048 --batch-size auto --tokens 100e6 --replicas 8 --sharding fsdp --max-dollars 100
y cost llama-3.1-8b --sequence-length 2048 --batch-size 2 --tokens 100e6 --max-dollars 100
y cost h100-vllm llama-3.1-70b --sequence-length 4096 --batch-size 1 --tokens 200e6 --replicas 8,16,32,64 --sharding fsdp --checkpointing full
y cost a100-vllm llama-3.1-70b --sequence-length 4096 --batch-size 1 --tokens 200e6 --replicas 16,32 --sharding hybrid --checkpointing full
y cost h100-vllm llama-3.1-70b --sequence-length 4096 --batch-size 1 --tokens 200e6 --replicas 16 --sharding zero2 --checkpointing full
y cost h100-vllm llama-3.1-70b --sequence-length 4096 --batch-size 1 --tokens 200e6 --replicas 16 --sharding zero3
y cost h100-vllm llama-3.1-8 --sequence-length 4096 --batch-size 1 --tokens 200e6 
y cost h100-vllm llama-3.1-8b --sequence-length 4096 --batch-size 1 --tokens 200e6 --tune qlora:16
y cost h100-vllm llama-3.1-8b --batch-size 1 --tokens 200e6 --tune lora:16
y cost h100-vllm llama-3.1-8b --sequence-length 4096 --batch-size 1 --tokens 200e6 --tune lora:16 --max-dollars 1
