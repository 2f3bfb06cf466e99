"""Talks about a long document with a real model, and shows what a cached prefix saves. Run it twice: the second run, a new
process, finds the first one's blocks on disk.

python examples/chat.py [--model FOLDER] [--address unix:///path/of/the.sock] [--tokens 2000] [--new 40]

Without --address there is no daemon: the tiers are in this process, and its disk tier is kept under --dir. Needs transformers;
without --model also gguf and accelerate, to prepare SmolLM2-135M-Instruct (93 MB are downloaded).
"""

import argparse
import argparse as document  # a long text that every Python has: the source of this module
import inspect
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import hybridkv
from hybridkv.benchmarks.real_model import prepared_model
from hybridkv.connectors.transformers import PrefixCache, namespace_of

QUESTIONS = ("What is this module for?", "Which class would I use first?", "How does it print its help?")


class FirstToken:
    """A streamer of `generate` that notes when the first new token came."""

    def __init__(self) -> None:
        self.began, self.after_s, self.seen = time.perf_counter(), 0.0, 0

    def put(self, tokens: object) -> None:  # first the prompt, then each token
        self.seen += 1
        if self.seen == 2:
            self.after_s = time.perf_counter() - self.began

    def end(self) -> None:
        pass


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model's folder (default: SmolLM2-135M-Instruct, prepared once)")
    parser.add_argument("--address", help="of a daemon (default: none, tiers in this process)")
    parser.add_argument("--dir", type=Path, default=Path.home() / ".cache" / "hybridkv" / "chat", help="its disk tier")
    parser.add_argument("--tokens", type=int, default=2000, help="of the document")
    parser.add_argument("--new", type=int, default=40, help="most tokens of an answer")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    folder = given.model or prepared_model()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()  # bf16 is slow on many CPUs
    source = tokenizer(inspect.getsource(document))["input_ids"][: given.tokens]
    messages = [{"role": "system", "content": "Answer from this document:\n" + tokenizer.decode(source)}]
    config = hybridkv.load_config(
        overrides={
            "daemon.socket": f"unix://{given.dir.absolute()}/kv.sock",  # names the host: a daemon may run beside it
            "disk.path": str(given.dir.absolute() / "disk"),
            "disk.capacity_bytes": "1GiB",
            "cpu.capacity_bytes": "512MiB",
        }
    )
    with ExitStack() as stack:
        where = given.address or stack.enter_context(hybridkv.open(config, namespace_of(model)))
        prefixes = stack.enter_context(PrefixCache(model, where))
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            chat = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
            ids = tokenizer.apply_chat_template(messages, **chat)["input_ids"]
            computed = FirstToken()
            model.generate(ids, max_new_tokens=1, do_sample=False, streamer=computed)
            cached = FirstToken()
            done = prefixes.generate(ids, max_new_tokens=given.new, do_sample=False, streamer=cached)
            answer = tokenizer.decode(done.output[0, ids.shape[1] :], skip_special_tokens=True).strip()
            messages.append({"role": "assistant", "content": answer})
            print(f"\n> {question}\n{answer}")
            print(
                f"  {done.prompt_tokens} tokens, {done.cached_tokens} of them cached; first token after "
                f"{cached.after_s * 1e3:.0f} ms with the cache, {computed.after_s * 1e3:.0f} ms without"
            )


if __name__ == "__main__":
    main()
