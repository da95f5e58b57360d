"""Finished jobs whose numbers can be worked out by hand, as files."""

import json

import yaml

SUMMARY = {
    "name_benchmark": "bench", "name_model": "model", "name_dataset": "data", "name_feedback": "ef",
    "name_plan": "model",
    "name_profile": "quick", "units_per_step_per_rank": 10, "unit": "words", "loss_first": 9.0, "loss_last": 7.5,
    "metric": "perplexity", "metric_value": 321.0, "replicas_agree": True, "compute_only_ms": 20.0,
    "probe_all_reduce_1000kb_mbit_per_s": 95.0, "parameters": 1000, "world_size": 2, "ranks_per_node": 1,
    "threads_per_rank": 1, "job_seconds": 1.0,
}  # fmt: skip
ENV = {
    "hardware": "2x Abacus", "cores": 2, "memory_gib": 1.0, "system": "Linux", "python_version": "3.11",
    "torch_version": "2.9", "commit": "abc123", "uncommitted_changes": False, "code_fingerprint": "new",
    "network": "shaped", "rate_mbit_per_s": 100.0,
    "latency_emulated": False, "burst_kib": 32, "data_sha256": "0", "origin": "measured",
}  # fmt: skip
PER_EPOCH = 2  # steps
MOMENTUM = {"_target_": "torch.optim.SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}
NO_LINK = {"rate_mbit_per_s": None, "burst_kib": None}


def write_job(
    folder, compressor, step_ms, *, ratio=None, seed=1, finished=1.0, khat=(1.0, 1.0, 1.0), rule="trend",
    task="LanguageModel", quality=(), every=None, target=None, feedback=None, optimizer=None, training=None,
    loss=(8.0,), sent=5000, world_size=2, summary=None, schedule=None, tag="", **env,
):  # fmt: skip
    """`write_job(folder, "topk", [40, 50, 60], ratio=0.01)`: a job with steps of so many milliseconds.

    `quality`: the metric every `every` steps, whose last value is the final one; the target as in a configuration.
    `loss`, `khat`: step by step, over and over. `tag`: tells jobs apart that differ in what is not in a job's name.
    """
    facts = {**ENV, **env}
    name = f"{compressor}-{ratio}-{seed}-{rule}-{facts['code_fingerprint']}-{facts['network']}{tag and f'-{tag}'}"
    path = folder / "jobs" / name
    path.mkdir(parents=True)
    settings = None if ratio is None else {"_target_": "x.Y", "ratio": ratio, "rule": rule}
    inner = {**feedback, "inner": settings} if feedback else settings
    shaped, hooked = facts["network"] == "shaped", compressor != "none"
    config = {
        "ratio": 0.5, "seed": seed, "compressor": settings, "feedback": None, "plan": {"_target_": "x.Plan"},
        "task": {"_target_": f"experiments.tasks.{task}"}, "optimizer": optimizer,
        **({"schedule": schedule} if schedule else {}),  # older configurations have none
        "method": {"_target_": "x.Gathered", "compressor": inner or compressor} if hooked else None,
        "network": {"shaped": shaped, "rate": "100mbit" if shaped else None},
        "workers": {"world_size": world_size, "timeout_s": 3}, "names": {"compressor": compressor},
        "training": {
            "batch_per_rank": 4, "steps": len(step_ms), "excluded_steps": 4 if every is None else 0,
            "evaluate_every": every, "target": target, **(training or {}),
        },
    }  # fmt: skip
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    lines = _steps(step_ms, config["training"]["excluded_steps"], ratio, khat, hooked)
    for i, line in enumerate(lines):
        line |= {"loss": loss[i % len(loss)], "sent_bytes": sent}
    (path / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = _quality(path, step_ms, quality, every, target, task) if every else {}
    (path / "summary.json").write_text(
        json.dumps(
            {
                **SUMMARY,
                **found,
                "name_compressor": compressor,
                "world_size": world_size,
                **(summary or {}),
            }
        )
    )
    (path / "env.json").write_text(json.dumps(facts))
    (path / "status.json").write_text(json.dumps({"state": "done", "started": 0.0, "updated": finished}))
    return path


def _steps(step_ms, first, ratio, khat, hooked):
    """The lines of steps.jsonl; plain DDP cannot be split."""
    return [
        {
            "step": first + i, "loss": 8.0, "density": ratio or 1.0,
            "khat_over_k": khat[i % len(khat)] if ratio else None,
            "payload_bytes": 4000, "step_ms": ms, "forward_backward_ms": ms / 2,
            "compress_ms": 2.0 if hooked else None, "exchange_ms": 3.0 if hooked else None,
            "mean_ms": 1.0 if hooked else None,
            "exposed_ms": 6.0 if hooked else None, "optimizer_ms": 4.0,
            "epoch": (first + i) / PER_EPOCH, "seconds": sum(step_ms[: i + 1]) / 1000,
            **({"stages": i} if ratio else {}),
        }
        for i, ms in enumerate(step_ms)
    ]  # fmt: skip


def _quality(path, step_ms, quality, every, target, task):
    """What the loop keeps of evaluations on the way."""
    points = [
        {
            "step": every * (i + 1), "epoch": every * (i + 1) / PER_EPOCH,
            "seconds": sum(step_ms[: every * (i + 1)]) / 1000, "metric_value": value,
        }
        for i, value in enumerate(quality)
    ]  # fmt: skip
    (path / "quality.json").write_text(json.dumps(points))
    up = task == "Classification"
    reached = (
        p for p in points if target is not None and (p["metric_value"] >= target if up else p["metric_value"] <= target)
    )
    first = next(reached, {"seconds": None, "step": None})
    return {
        "metric": "top1" if up else "perplexity", "metric_value": quality[-1], "target": target,
        "seconds_to_target": first["seconds"], "steps_to_target": first["step"],
    }  # fmt: skip
