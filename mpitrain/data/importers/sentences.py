"""Generate sentences of common words, made-up words and numbers, so that most sequences of phones occur."""

from typing import NamedTuple

import numpy as np

from mpitrain.errors import BadInput


class Language(NamedTuple):
    """Common `words`; made-up words have one to three syllables of onset + nucleus + coda, each given as a spelling."""

    words: tuple[str, ...]
    onsets: tuple[str, ...] = ()
    nuclei: tuple[str, ...] = ()
    codas: tuple[str, ...] = ()
    space: str = " "
    stop: str = "."


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


LANGUAGES = {
    "bn": Language(
        _words(
            "আমি তুমি সে আমরা তারা এই ওই কি কেন কোথায় কখন কে ভাত জল মাছ বাড়ি ঘর পথ নদী আকাশ মাটি ফুল গাছ পাখি দিন "
            "রাত সকাল বিকাল মানুষ মা বাবা ভাই বোন বন্ধু শিশু বই কলম কাজ কথা গান ভাষা দেশ শহর গ্রাম বাজার টাকা সময় বছর "
            "মাস চোখ হাত মুখ মন ভালো খারাপ বড় ছোট নতুন পুরনো সুন্দর লাল নীল সবুজ সাদা কালো এক দুই তিন চার পাঁচ যাই "
            "খাই দেখি করি বলি শুনি জানি চাই হবে আছে নেই ছিল এবং কিন্তু অথবা যদি তাহলে এখন আজ কাল পরশু বিজ্ঞান প্রকৃতি "
            "স্বাধীন রাষ্ট্র শ্রাবণ বর্ষা"
        ),
        _words("ক খ গ ঘ চ ছ জ ঝ ট ঠ ড ঢ ত থ দ ধ ন প ফ ব ভ ম য র ল শ স হ প্র ক্র ত্র গ্র স্ত স্প ক্ল শ্র"),
        ("", *_words("া ি ু ে ো ৌ ৈ ্যা")),
        ("", "", "", *_words("ক ং ত ন প ম র ল শ স ড় ট")),
        stop="।",
    ),
    "hi": Language(
        _words(
            "मैं तुम वह हम यह क्या क्यों कहाँ कब कौन पानी रोटी घर रास्ता नदी आकाश फूल पेड़ दिन रात सुबह शाम आदमी माँ "
            "पिता भाई बहन दोस्त बच्चा किताब कलम काम बात गाना भाषा देश शहर गाँव बाज़ार पैसा समय साल महीना आँख हाथ मुँह "
            "अच्छा बुरा बड़ा छोटा नया पुराना सुंदर लाल नीला हरा सफ़ेद काला एक दो तीन चार पाँच जाता खाता देखता करता "
            "बोलता सुनता है था होगा और लेकिन या अगर"
        ),
        _words("क ख ग घ च छ ज झ ट ठ ड ढ त थ द ध न प फ ब भ म य र ल व श स ह प्र क्र त्र ग्र स्त स्प"),
        ("", *_words("ा ि ी ु ू े ै ो ौ")),
        ("", "", "", *_words("क त न प म र ल श स ट ड़ ज")),
        stop="।",
    ),
    "cmn": Language(  # single characters: every pair of syllables can meet
        tuple(
            "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里用道行所然家种事成方多经么去"
            "法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实日军者意无力它与长把机十民第公此已工使情明性知全三又关"
            "点正业外将两高间由问很最重并物手应战向头文体政美相见被利什二等产或新己制身果加西斯月话合回特代内信表化老给世位次度门任常先海通"
            "教儿原东声提立及比员解水名真论处走义各入几口认条平系气题活尔更别打女变四神总何电数安少报才结反受目太量再感建务做接必场件计管期"
            "市直德资命山金指克许统区保至队形社便空决治展马科司五基眼书非则听白却界达光放强即像难且权思王象完设式色路记南品住告类求据程北边"
            "死张该交规万取拉格望觉术领共确传师观清今切院让识候带导争运笔画穷群胸雄远怨捐选圈软轮论春尊村存酸随追吹雷肥飞否谋柔肉热冷耳"
        ),
        space="",
        stop="。",
    ),
    "en": Language(
        _words(
            "the a of to and in that it was for on are as with his they at be this from have or by one had not but "
            "what all were when we there can an your which their said if do will each about how up out them then she "
            "many some so these would other into has more her two like him see time could no make than first been its "
            "who now people my made over did down only way find use may water long little very after words called just "
            "where most know years house picture again animal point mother world near father pleasure measure thought "
            "young church judge vision singing bathe usual boy voice join cow power fire hour poor tour here idea "
            "beautiful few music window yellow"
        ),
        _words(
            "b bl br ch cl cr d dr f fl fr g gl gr h j k l m n p pl pr qu r s sc sh sl sm sn sp st str sw t th tr tw v "
            "w y z"
        ),
        _words("a e i o u ee oo ai oa oi ou ar er or ir igh aw ea ow ay"),
        ("", *_words("b ck d f g l m n p t v x z sh ch th ng nk nd nt mp st sk ll ss ft lt rd rk")),
    ),
    "de": Language(
        _words(
            "der die das und in zu den ist nicht von sie mit auf für er hat wir ich du ihr was wer wann warum wo Haus "
            "Weg Fluss Himmel Erde Blume Baum Vogel Tag Nacht Morgen Abend Mensch Mutter Vater Bruder Schwester Freund "
            "Kind Buch Arbeit Wort Lied Sprache Land Stadt Dorf Markt Geld Zeit Jahr Monat Auge Hand Mund gut schlecht "
            "groß klein neu alt schön rot blau grün weiß schwarz eins zwei drei vier fünf gehen essen sehen machen "
            "sagen hören wissen möchte Küche Löcher"
        ),
        _words(
            "b bl br d dr f fl fr g gl gr h j k kl kn kr l m n p pf pl pr r s sch schl schm schn schr schw sp st str t "
            "tr w z zw"
        ),
        _words("a e i o u ä ö ü ei au eu ie ah oh uh"),
        ("", *_words("b ch ck d f g l m n p r s t tz sch ng nk nd nt mp st ft lt rt rk")),
    ),
    "es": Language(
        _words(
            "el la de que y en un ser se no haber por con su para como estar tener le lo todo pero más hacer o poder "
            "decir este ir otro ese si me ya ver porque dar cuando él muy sin vez mucho saber qué sobre mi alguno "
            "mismo yo también hasta año dos querer entre así primero desde grande eso ni nos llegar pasar tiempo ella "
            "día uno bien poco deber entonces poner cosa tanto hombre parecer nuestro tan donde ahora parte después "
            "vida quedar siempre creer hablar llevar niño guerra"
        ),
        _words("b bl br c ch cl cr d dr f fl fr g gr gu h j l ll m n ñ p pl pr qu r rr s t tr v y z"),
        _words("a e i o u ai ei ie ia ue ua au"),
        ("", "", *_words("n s r l d z m")),
    ),
}
SHARES = (0.45, 0.5, 0.05)  # probabilities of common words, made-up words, numbers


def sentence(language: str, rng: np.random.Generator) -> str:
    """A sentence of 4 to 12 words (of 8 to 24 characters in cmn). Raises BadInput for a language without a list."""
    if language not in LANGUAGES:
        raise BadInput(f"--language {language}: known are {', '.join(LANGUAGES)}")
    rules = LANGUAGES[language]
    count = int(rng.integers(4, 13)) * (2 if not rules.space else 1)
    words = [_word(rules, rng) for _ in range(count)]
    if count > 6:
        words[count // 2] += ","
    return rules.space.join(words) + (rules.stop if rng.random() < 0.8 else "?")


def _word(rules: Language, rng: np.random.Generator) -> str:
    kind = int(rng.choice(3, p=SHARES))
    if kind == 2:
        return str(int(10 ** rng.uniform(0, 4)))
    if kind == 0 or not rules.onsets:
        return _one(rules.words, rng)
    count = int(rng.integers(1, 4))
    return "".join(_one(part, rng) for _ in range(count) for part in (rules.onsets, rules.nuclei, rules.codas))


def _one(choices: tuple[str, ...], rng: np.random.Generator) -> str:
    return choices[int(rng.integers(len(choices)))]
