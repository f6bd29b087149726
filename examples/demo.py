"""The main job: train on a simulated TPU slice, then ask the real TPU compiler about the real one.

Needs no TPU. Prints what it finds, and writes ``out/preflight.html`` where it is run.
"""
from pathlib import Path

import neurenix as nx
from neurenix import nn

SLICE = "v5e-8"
BATCH_SIZE = 200

nx.simulate(SLICE)                                  # eight virtual devices, the real SPMD partitioner
nx.seed(0)
train, test = nx.data.digits()
strategy = nx.distribute.auto()
with strategy.scope():
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 2 * 2, 128), nn.ReLU(), nn.Linear(128, 10))
    model.compile(
        optimizer=nx.optim.Adam(1e-3),
        loss=nx.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=10)

print(f"Training on {len(train):,} handwritten digits, {strategy.num_replicas_in_sync} replicas "
      f"({SLICE}, simulated: its times are not a TPU's)")
history = model.fit(
    train.shuffle(seed=0).repeat().batch(BATCH_SIZE, drop_remainder=True),
    epochs=10, steps_per_epoch=50, validation_data=test.batch(BATCH_SIZE))
print(f"validation accuracy {100 * history['val_accuracy'][-1]:.2f} %")

print(f"\nCompiling the same training step for a real {SLICE} with the TPU compiler ...")
report = nx.preflight(model, on=SLICE, input_shape=(BATCH_SIZE, 8, 8, 1))
print(report)
page = Path("out") / "preflight.html"
page.parent.mkdir(exist_ok=True)
report.to_html(page)
print(f"The whole report: {page}")
