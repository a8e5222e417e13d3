"""transformers.Trainer beside the exact step: python -m gacc.verify verify_trainer.py:loop --batches 8"""
import tempfile

import torch
import transformers

from verify_models import loss, optimizer, text_batches as batches, text_module as module, train  # noqa: F401

target = "labels"


class Trainer(transformers.Trainer):
    def get_train_dataloader(self):  # the micro-batches as they are
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=None)


def loop(module, optimizer, batches, accumulate=4):
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(folder, gradient_accumulation_steps=accumulate, max_grad_norm=1.0,
                                                   num_train_epochs=1, use_cpu=True, disable_tqdm=True,
                                                   save_strategy="no", report_to=[])
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1.0)
        Trainer(module, arguments, train_dataset=batches, optimizers=(optimizer, schedule)).train()
