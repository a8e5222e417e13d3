"""What PyTorch keeps, changes or calls beside a forward's numbers: gacc carries it, or refuses it by name and line."""
import builtins
import pathlib
import random
import subprocess
import sys
import threading
import time

import harness
from harness import expect, raises

harness.begin_package("torch", "numpy")
import gacc  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch_nets import SGD, apart, session, updated  # noqa: E402

X = torch.linspace(-1, 1, 12).view(3, 4)


class One(nn.Module):
    """A parameter times the input, and what a test makes of both."""

    def __init__(self, function=None):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.linspace(0.5, 1, 4)), function

    def forward(self, x):
        return self.function(self, x * self.weight)


def compiled(module, **more):
    name = "input" if isinstance(module, nn.Sequential) else "x"
    return gacc.from_torch(module, {name: X}, **({"loss": "mse", "target": "y", "optimizer": SGD} | more))


def refused(module, *words):
    return raises(gacc.Error, *words)(lambda: compiled(module))


def as_pytorch(module, call=None):
    """The forward and an update are those of the module."""
    y = torch.randn(call(module, X).shape if call else module(X).shape, generator=torch.Generator().manual_seed(1))
    run = session(compiled(module))
    with torch.no_grad():
        wanted = module(X)
    expect(np.allclose(run.predict({next(iter(run.compiled.inputs)): X}), wanted, atol=1e-6), "another forward")
    run.step({next(iter(run.compiled.inputs)): X}, y=y)
    run.update()
    _, after = updated(module, {"x": X}, "mse", y)
    worst, where = apart(run.parameters(), after)
    expect(worst <= 1e-6, f"{where} is {worst:.1e} off")


# ---------------------------------------------------------------- hooks
def test_hooks_of_gradients_are_refused(_):
    net = nn.Sequential(nn.Linear(4, 3))
    for register, *words in (
            (net[0].weight.register_hook, "the parameter `0.weight`", "(register_hook)"),
            (net[0].bias.register_post_accumulate_grad_hook, "`0.bias`", "(register_post_accumulate_grad_hook)"),
            (net[0].register_full_backward_hook, "the module `0` (Linear)", "(register_full_backward_hook)"),
            (net.register_full_backward_pre_hook, "the module itself", "(register_full_backward_pre_hook)"),
            (nn.modules.module.register_module_full_backward_hook, "each module")):
        handle = register(lambda *_: None)
        refused(net, *words, "remove it")
        handle.remove()
    as_pytorch(net)


def test_hooks_of_the_forward_are_followed(_):
    """Also those of the module itself, with what they do about gradients."""
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    net.register_forward_pre_hook(lambda _, given: (given[0] * given[0].detach(),))
    net.register_forward_hook(lambda _, given, out: out + given[0][:, :3])
    net[0].register_forward_hook(lambda _, given, out: out * 2)
    as_pytorch(net)


# ---------------------------------------------------------------- memory
def test_tensors_on_one_memory_are_refused(_):
    def pair():
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for kind, make in (("weight", lambda w: w.data), ("bias", lambda w: w.data[1]), ("weight", lambda w: w.data.T)):
        net = pair()
        setattr(net[1], kind, nn.Parameter(make(net[0].weight)))
        refused(net, "`0.weight`", f"`1.{kind}`", "one memory", "clone()")
    net = pair()
    net.register_buffer("average", net[0].weight.detach())
    refused(net, "`0.weight`", "`average`")
    net = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    net[1].running_mean = net[0].running_mean[:]
    refused(net, "`0.running_mean`", "`1.running_mean`")
    net[1].running_mean = net[0].running_mean
    refused(net, "`0.running_mean`", "`1.running_mean`", "one running statistic")
    net = One(lambda self, x: x)
    net.weight = nn.Parameter(torch.ones(1).expand(4))
    refused(net, "`weight` is [4]", "expand")
    net = One(lambda self, x: x @ self.other)
    net.other = net.weight.data.view(4, 1)
    refused(net, "`other`", "the memory of `weight`", "torch_state.py")
    net = One(lambda self, x: x * self.other)
    net.other = net.weight * 2
    refused(net, "`other`", "computed with a gradient", "torch_state.py")


def test_one_memory_of_several_is_carried(_):
    """Slices that share no number, and one parameter of two names."""
    flat = torch.randn(8, 4)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[0].weight, net[1].weight = nn.Parameter(flat[:4]), nn.Parameter(flat[4:])
    as_pytorch(net)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    as_pytorch(net)


# ---------------------------------------------------------------- buffers and attributes
def test_constants_of_the_step_are_not_loaded_in_silence(_):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.unread = nn.Linear(4, 2), nn.Linear(2, 2)
            self.register_buffer("shift", torch.zeros(4))

        def forward(self, x):
            return self.linear(x - self.shift)
    net = Net()
    step = compiled(net)
    run, other = session(step), session(step)
    state = {name: x.clone() for name, x in net.state_dict().items()}
    state["unread.weight"] += 1
    state["linear.bias"] += 1
    run.load(state)
    after = run.parameters()
    expect(all(torch.equal(after[name], x) for name, x in state.items()), "what was loaded is not what is there")
    expect(torch.equal(other.parameters()["unread.weight"], net.unread.weight), "another session has it, too")
    state["shift"] += 2
    raises(gacc.Error, "`shift`", "constants of the step", "from_torch")(lambda: run.load(state))
    expect(torch.equal(run.parameters()["shift"], net.shift), "a part of a refused state is there")
    net.load_state_dict(state)
    expect(np.allclose(session(compiled(net)).predict(x=X), net(X).detach(), atol=1e-6), "compiled again")


class Counts(One):
    def forward(self, x):
        self.n += 1
        return x * self.weight * self.n


class Remembers(One):
    def forward(self, x):
        out = x * self.weight + (0 if self.before is None else self.before)
        self.before = out
        return out


class Collects(One):
    def forward(self, x):
        self.seen.append(x.shape[1])
        return x * self.weight


class Waits(One):
    """Its program changes in a call that no export makes."""

    def forward(self, x):
        self.calls["all"] += 1
        return x * self.weight * (2 if self.calls["all"] > 1000 else 1)


def test_attributes_that_calls_change_are_refused(_):
    for kind, name, value, line in ((Counts, "n", 0, "self.n += 1"), (Remembers, "before", None, "self.before = out"),
                                    (Collects, "seen", [], "self.seen.append"), (Waits, "calls", {"all": 0}, "+= 1")):
        net = nn.ModuleDict({"inner": kind()})
        net.forward = lambda x: net["inner"](x)
        setattr(net["inner"], name, value)
        before = repr(value)
        error = refused(net, f"self.{name}", f"module `inner` ({kind.__name__})", "torch_state.py", line)
        expect(error.file == __file__ and line in pathlib.Path(__file__).read_text().splitlines()[error.line - 1],
               f"{error.file}:{error.line}: {error}")
        expect(repr(getattr(net["inner"], name)) == before, "from_torch has changed it")
    generator = np.random.default_rng(1)
    for function, *words in ((lambda self, x: x * random.random(), "`random`"),
                             (lambda self, x: x * np.random.rand(), "`numpy.random`"),
                             (lambda self, x: x * np.random.default_rng().random(), "numpy.random"),
                             (lambda self, x: x * generator.random(), "next call"),
                             (lambda self, x: x * time.time(), "next call"),
                             (lambda self, x: (torch.manual_seed(1), x)[1], "seed")):
        state = random.getstate()
        refused(One(function), *words, "torch_state.py")
        expect(random.getstate() == state, "numbers were drawn")


def test_attributes_that_are_no_state_are_left_alone(_):
    """The last activations, and what is computed once; the module is afterwards as it was."""
    def last(self, x):
        self.last, self.shape = x, x.shape[1:]
        return x

    def cached(self, x):
        if self.table is None:
            self.table = torch.arange(4.0).cos()
        return x * self.table
    as_pytorch(One(last))
    net = One(cached)
    net.table = None
    run = session(compiled(net))
    expect(net.table is None, "the cache is left in the module")
    expect(np.allclose(run.predict(x=X), net(X).detach(), atol=1e-6), "another forward")


def test_writes_into_tensors_are_refused(_):
    def counted(self, x):
        self.count.add_(1)
        return x * self.count
    net = One(counted)
    net.count = torch.zeros(())
    refused(net, "`count`", "torch_state.py")
    expect(net.count.item() == 0, "the export has written into it")

    def one_part(self, x):
        a, b = self.count.split(2)
        b.add_(1)
        return x * a.sum()
    net = One(one_part)
    net.count = torch.zeros(4)
    refused(net, "`count`", "torch_state.py")
    refused(One(lambda self, x: (self.weight.requires_grad_(False), x)[1]), "what is trained")


# ---------------------------------------------------------------- what is plain in PyTorch
def test_the_number_of_samples_as_len(_):
    class Pixels(One):
        """As a ViT begins, and as a text's last token is taken."""

        def forward(self, x):
            x = (x * self.weight).view(len(x), 2, 2)
            with_class = torch.cat([torch.ones(1, 1, 2).expand(len(x), -1, -1), x], 1)
            return with_class[torch.arange(len(x)), (x[:, 0, 0] > 0).long()]
    as_pytorch(Pixels())
    refused(One(lambda self, x: sum(x[i] for i in range(len(x)))), "number of samples", "torch_state.py")
    expect(len.__module__ == "builtins" and builtins.len is len, "len is another function now")


def test_submodules_may_be_called_as_attributes_of_a_program(_):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.code, self.graph = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4))

        def forward(self, x):
            return self.graph(self.code(x).tanh())
    net = Net()
    names = list(net.state_dict())
    as_pytorch(net)
    expect(list(net.state_dict()) == names == list(session(compiled(net)).parameters()), "the names have changed")


def test_a_loss_in_the_forward_is_told(_):
    for name, loss in ((F.mse_loss, "mse"), (F.l1_loss, "l1")):
        refused(One(lambda self, x, name=name: name(x, x * 2)), f'say loss="{loss}"', "torch_state.py")
    refused(One(lambda self, x: F.cross_entropy(x, x[:, 0].long())), 'say loss="cross_entropy"')


# ---------------------------------------------------------------- threads and the end
def test_threads_compile_and_pytorch_stays_as_it_was(_):
    """Eight at once, half of which fail, while another one trains by a torch.autograd.Function of its own, and draws
    random numbers that are not the forward's."""
    import torch._dynamo  # noqa: F401  which puts a torch.manual_seed of its own in place of PyTorch's
    class Double(torch.autograd.Function):
        forward = staticmethod(lambda _, x: x * 2)
        backward = staticmethod(lambda _, dy: dy * 2)

    def pytorch():
        layers = nn.modules.transformer
        return (vars(torch.autograd.Function)["apply"], torch.is_grad_enabled, builtins.len, torch.manual_seed,
                layers._detect_is_causal_mask, torch.backends.mha.get_fastpath_enabled(),
                torch.backends.opt_einsum.enabled, np.random.default_rng)
    before, failures, done = pytorch(), [], threading.Event()

    def compiles(i):
        try:
            if i % 2:
                refused(One(lambda self, x: x * torch.special.i0e(x) @ torch.ones(9, 9)), "")
            else:
                as_pytorch(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, i + 1)))
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    drawn = []
    np.random.seed(5)

    def trains():
        while not done.is_set():
            drawn.append(np.random.rand())
            x = torch.ones(3, requires_grad=True)
            Double.apply(x).sum().backward()
            if x.grad.tolist() != [2, 2, 2] or not torch.is_grad_enabled():
                failures.append(x.grad)
            time.sleep(0.01)
    threads = [threading.Thread(target=compiles, args=(i,)) for i in range(8)]
    other = threading.Thread(target=trains)
    for thread in (*threads, other):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    other.join()
    expect(not failures, f"{failures}")
    expect(pytorch() == before, "PyTorch has other functions than before")
    expect(drawn == np.random.RandomState(5).rand(len(drawn)).tolist(), "the random numbers begin again")


def test_what_another_thread_draws_once_is_not_the_forwards(_):
    drawn = []

    def forward(self, x):
        if not drawn:
            other = threading.Thread(target=lambda: drawn.append(np.random.rand()))
            other.start()
            other.join()
        return x * 2
    compiled(One(forward))
    expect(len(drawn) == 1, f"{drawn}")


def test_sessions_of_globals_end_in_silence(folder):
    script = folder / "script.py"
    script.write_text(
        "import gacc, torch\n"
        "step = gacc.from_torch(torch.nn.Linear(2, 2), {'input': torch.ones(2, 2)}, loss='mse', optimizer='sgd')\n"
        "run = gacc.Session(step, 'cpu')\n"
        "class Kept: pass\n"
        "kept = Kept(); kept.kept = kept; kept.all = step, run\n"
        "import builtins; builtins.last = kept\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=harness.package_environment())
    expect(done.returncode == 0 and "Exception" not in done.stderr and "Traceback" not in done.stderr, done.stderr)


def test_an_old_pytorch_is_told_in_one_line(folder):
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").write_text('__version__ = "1.13.1"\n')
    environment = harness.package_environment()
    environment["PYTHONPATH"] = f"{folder}:{environment['PYTHONPATH']}"
    done = subprocess.run([sys.executable, "-c", "import gacc\ntry:\n    gacc.from_torch(None, {}, loss='mse')\n"
                           "except gacc.Error as error:\n    print(error)"],
                          capture_output=True, text=True, env=environment)
    expect(done.stdout == "gacc.from_torch needs PyTorch 2.4 or later, and this is 1.13.1\n", done.stdout + done.stderr)


harness.main(globals())
