"""What the authors of the data sets publish: which files, where, and their checksums."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """A published file.

    Args:
        name: of the file, on the server and in the data set's folder.
        size: its length in bytes.
        checksum: ``"algorithm:hexadecimal digits"``.
    """

    name: str
    size: int
    checksum: str


@dataclass(frozen=True)
class Published:
    """Where a data set can be had.

    Args:
        files: what is published; empty where it is no files.
        places: addresses that end in ``/`` and hold all files, tried in this order.
        page: the authors' page, for people.
        by_hand: what to do where there are no files to download.
    """

    files: tuple[File, ...]
    places: tuple[str, ...]
    page: str
    by_hand: str = ""


# MNIST's and Fashion-MNIST's sums: torchvision/datasets/mnist.py, and the README of zalandoresearch/fashion-mnist
MNIST = (
    File("train-images-idx3-ubyte.gz", 9_912_422, "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873"),
    File("train-labels-idx1-ubyte.gz", 28_881, "md5:d53e105ee54ea40749a09fcbcd1e9432"),
    File("t10k-images-idx3-ubyte.gz", 1_648_877, "md5:9fb629c4189551a2d022fa330f9573f3"),
    File("t10k-labels-idx1-ubyte.gz", 4_542, "md5:ec29112dd5afa0611ce80d1b7f02629c"),
)
FASHION_MNIST = (
    File("train-images-idx3-ubyte.gz", 26_421_880, "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    File("train-labels-idx1-ubyte.gz", 29_515, "md5:25c81989df183df01b3e8a0aad5dffbe"),
    File("t10k-images-idx3-ubyte.gz", 4_422_102, "md5:bef4ecab320f06d8554ea6380940ec79"),
    File("t10k-labels-idx1-ubyte.gz", 5_148, "md5:bb300cfdad3c16e7a12a480ee83cd310"),
)
# CIFAR's sums stand on the authors' page (column md5sum, binary version)
CIFAR_10 = (File("cifar-10-binary.tar.gz", 170_052_171, "md5:c32a1d4ab5d03f1284b67883e8d87530"),)
CIFAR_100 = (File("cifar-100-binary.tar.gz", 168_513_733, "md5:03b5dce01913d631647c71ecec9e9cb8"),)
CIFAR_PLACES = ("https://www.cs.toronto.edu/~kriz/",)
CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"

# The authors publish no sums for these: they were computed from a copy of the files. Half of them were compared with
# what others have recorded of the same repository, and agree.
TEP = (
    File("d00.dat", 416_049, "sha256:4c3c0b11eefacf93e5d2529e2866d7a625e37aa9153d0f95fae17a6c9e560deb"),
    File("d00_te.dat", 799_680, "sha256:57d56da4199e3d73582855d810be1d13d931386fd728bf1694798c7b0a03678c"),
    File("d01.dat", 399_840, "sha256:b0da22ac7561d82b0ba0b48bf87d2b3a8655cb23a3dc37330dd03cdd126c387c"),
    File("d01_te.dat", 799_680, "sha256:e7e6992fb39664e739fccbc001a1c5d5f7cb21829544f734ca3f282c26f680e5"),
    File("d02.dat", 399_840, "sha256:af1a46ba3a5482be3e7b143606f22ae509138544af2a2d0eb7389459257f8179"),
    File("d02_te.dat", 799_680, "sha256:a34bd9c3693fa96bd3ee533fb7fbe29a9d226a4e3250b585ef1308e1136dbfb0"),
    File("d03.dat", 399_840, "sha256:df39c57bdac7ea476ee236c289e0f59b0cbf868adfbbbaf213f692d8cd96e52a"),
    File("d03_te.dat", 799_680, "sha256:b7bf6f2ed7cff0a5577898b009edd252b9bdf6ee9ff7dbeacf9af9aa4c6abace"),
    File("d04.dat", 399_840, "sha256:346702fce33d9707f0b4ec5b8f533ccb08be60313607d5156d7e237b80a87b3f"),
    File("d04_te.dat", 799_680, "sha256:1ccb488dd5feac11aad54623451168abef066229e685872597897800363916f9"),
    File("d05.dat", 399_840, "sha256:3a47bfce4010ce0c634ae828409cce657ecd03bf0c4d59f8dd4a3d4f792f493f"),
    File("d05_te.dat", 799_680, "sha256:1def7258a2865aeead699d52c8cf926fbf34c1467aaf298121987ab858fd0888"),
    File("d06.dat", 399_840, "sha256:ff0882a44bb74f5d2d1a864425ac7e5ae82420391c7060232cefc08ad5bf7331"),
    File("d06_te.dat", 799_680, "sha256:8a3adc7121eaa9b9300c27f9c57a8ab356315401cb964310a4a8244dd34bf79d"),
    File("d07.dat", 399_840, "sha256:e3fd272ed53f899ab0c8278c7eede55418b01a2339b5fcff14a87fefaa3d181d"),
    File("d07_te.dat", 799_680, "sha256:e01b7c81daf9fccc4495cbde5658296918276b3c078044893f6e945dd91d3446"),
    File("d08.dat", 399_840, "sha256:4817735e339449bec909d1cbe77e421acc79c7357b8c6b5bb82c6e5788b72449"),
    File("d08_te.dat", 799_680, "sha256:c0637f02f23b79890b43cfee9604818ad6d7f81532223d76acf1da0d6e2a2cc1"),
    File("d09.dat", 399_840, "sha256:cb9146da760cdd52cad575d745413a5cfb4b447af2db9fb6a424cf6881ff0fcd"),
    File("d09_te.dat", 799_680, "sha256:513df6c3a4fd48e0eaddb0002cd8cdab3a78a5c83c47883bb52d2dc6c2472428"),
    File("d10.dat", 399_840, "sha256:e08697b5d074aea2345434bc4d26296f5dbdbb7efbf37a1bbee292b2ce765e8f"),
    File("d10_te.dat", 799_680, "sha256:3a278be79d8d111fc60be3cfb4f961c28e2dc632f17eb519886aa0f95864ffc6"),
    File("d11.dat", 399_840, "sha256:8294734d6f6e8f6b8643b9dc72f38ce40afd868d30dee9368a0d26b963a0af9f"),
    File("d11_te.dat", 799_680, "sha256:6d60a4c932d918e1ab26ae5d16320936a665f3aad3f05482d23f5c4550b9f29a"),
    File("d12.dat", 399_840, "sha256:62fcb3c71c0eda8eaaaf707f35296e60b17baaf9a9aef588687532cf4c560d38"),
    File("d12_te.dat", 799_680, "sha256:2180fcecb01d1b110b429ba2969d6b18dcc625599e3640e54f69afa32dccbe50"),
    File("d13.dat", 399_840, "sha256:f755d4ab6dc1d30e36c2e4604eeb0baff4b91032f487398b97fb1220eda861dd"),
    File("d13_te.dat", 799_680, "sha256:2e34e0c427d6e41d77d6cae76550b7e95004f9f13bc093278ecf5c282a1c9f03"),
    File("d14.dat", 399_840, "sha256:29fda7d5cae58cb7240e569e2d2d436371d077d282187d9205c7dc01df8755af"),
    File("d14_te.dat", 799_680, "sha256:e8976d056c0769cebbcec3bcba89d2468040ccae7acbea55ebc3b2e56b217396"),
    File("d15.dat", 399_840, "sha256:4c82fe0864cce2521e91a2c3e59d8630627c5e633cffe83f5e34ebc9901b5bca"),
    File("d15_te.dat", 799_680, "sha256:a7242b956837bec8ca7f224d01805247f2aea6ea868eaa064e068b5c0761b1e5"),
    File("d16.dat", 399_840, "sha256:ca1dfc5e31292052e83dcf6b4f60a73da197eb8a47e65d908ed7ac3cbcccb007"),
    File("d16_te.dat", 799_680, "sha256:8381d7371aac49b498e7bf93149b77a0a6bbeffe73520881dcbe8ae96277244d"),
    File("d17.dat", 399_840, "sha256:596aad6421a64d257bfa098cd5c4664d46dc49d88d1bad86cbc9518e6cd69e42"),
    File("d17_te.dat", 799_680, "sha256:27d2d72052064e3cbb7a45df8073f15bb83b77403f532616e73c8869b043e7c9"),
    File("d18.dat", 399_840, "sha256:b4d182c070036104cf150bc33f7aa879805f19943eb298bc05bdc8647dc70291"),
    File("d18_te.dat", 799_680, "sha256:1db5b93a7daa58ed1b641845b58ad818546ced7f3de866c086da18a7ebef5041"),
    File("d19.dat", 399_840, "sha256:ee3d2a50285cb3ba5e52ec05ea7cb39dc2b574bec592af9d44c192be132aeea6"),
    File("d19_te.dat", 799_680, "sha256:c24dd77f787f89347273addc8a453d79f0b99edd64d43be11a5e0907bd515c5f"),
    File("d20.dat", 399_840, "sha256:acdfe6c256fa6de74a811d6c7df1b710a9f0ed60f48242be92f3fa30db3df6b3"),
    File("d20_te.dat", 799_680, "sha256:e54035eda95311f13dd095f87607d97a89b7541afa2a3f68af098f33a5e2e6e5"),
    File("d21.dat", 399_840, "sha256:f34a9fefffef04ef1f49b3fb74e3def0010cda27a8577d814dd50604e2f8dc09"),
    File("d21_te.dat", 799_680, "sha256:b6823aa09638cd59cb168bc24f991b6d4d557d8aea62b0b2a87ee67c21ba5a83"),
)

LEAF = """LEAF publishes no files but a script that makes them from NIST's, which takes long:
  git clone https://github.com/TalwalkarLab/leaf
  cd leaf/data/femnist
  pip install numpy pillow
  ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample
Then put the *.json of its data/train into {folder}/train and those of data/test into {folder}/test."""

NASA = """NASA publishes one archive of all its data of this kind:
  https://phm-datasets.s3.amazonaws.com/NASA/6.+Turbofan+Engine+Degradation+Simulation+Data+Set.zip
It holds CMAPSSData.zip. Put train_FD001.txt, test_FD001.txt and RUL_FD001.txt of that, and those of FD002 to FD004,
into {folder}."""

PUBLISHED = {
    **dict.fromkeys(
        ("labels", "procedural", "machines"),
        Published((), (), "", "It is made here: set [park] devices and [data] samples_per_device."),
    ),
    "mnist": Published(
        MNIST,
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        "http://yann.lecun.com/exdb/mnist/",
    ),
    "fashion-mnist": Published(
        FASHION_MNIST,
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        "https://github.com/zalandoresearch/fashion-mnist",
    ),
    "cifar-10": Published(CIFAR_10, CIFAR_PLACES, CIFAR_PAGE),
    "cifar-100": Published(CIFAR_100, CIFAR_PLACES, CIFAR_PAGE),
    "femnist": Published((), (), "https://github.com/TalwalkarLab/leaf", LEAF),
    "cmapss": Published(
        (),
        (),
        "https://www.nasa.gov/intelligent-systems-division/discovery-and-systems-health/pcoe/pcoe-data-set-repository/",
        NASA,
    ),
    "tep": Published(
        TEP,
        ("https://raw.githubusercontent.com/camaramm/tennessee-eastman-profBraatz/master/",),
        "https://github.com/camaramm/tennessee-eastman-profBraatz",
    ),
}
