"""Lightning's Trainer beside the exact step: python -m gacc.verify verify_lightning.py:loop --batches 8"""
import lightning
import torch

from verify_models import batches, loss, module, optimizer, target, train  # noqa: F401  what gacc.verify takes


class Adapter(lightning.LightningModule):
    def __init__(self, net, made):
        super().__init__()
        self.net, self.made = net, made

    def training_step(self, batch, _):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return self.made


def loop(module, optimizer, batches, accumulate=4):
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, accumulate_grad_batches=accumulate,
                                gradient_clip_val=1.0, logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Adapter(module, optimizer), torch.utils.data.DataLoader(batches, batch_size=None))
